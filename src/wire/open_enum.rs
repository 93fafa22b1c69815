//! Enums with data in their variants that may get more variants: an unknown variant is read as the last one.
//!
//! `#[serde(other)]` alone accepts an unknown unit variant (`"new"`) but rejects an unknown variant with data (`{"new":
//! 1}`).

use serde::Deserializer;
use serde::de::value::{EnumAccessDeserializer, MapAccessDeserializer};
use serde::de::{
    DeserializeSeed, EnumAccess, Error, IgnoredAny, IntoDeserializer, MapAccess, VariantAccess, Visitor as SerdeVisitor,
};
use std::fmt;
use std::marker::PhantomData;

/// The functions that `#[serde(remote = "Self")]` derives, as a trait.
pub(crate) trait DerivedDeserialize<'de>: Sized {
    /// Deserializes the enum with the derived implementation.
    fn deserialize_derived<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// Implements `Serialize` and `Deserialize` for enums that derive both with `#[serde(remote = "Self")]` and whose last
/// variant is a unit variant with `#[serde(other)]`.
macro_rules! open_enums {
    ($($Enum:ident),*) => {$(
        impl serde::Serialize for $Enum {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                // Calls the derived inherent function, not this one.
                $Enum::serialize(self, serializer)
            }
        }

        impl<'de> crate::wire::open_enum::DerivedDeserialize<'de> for $Enum {
            fn deserialize_derived<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $Enum::deserialize(deserializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $Enum {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(crate::wire::open_enum::Visitor::default())
            }
        }
    )*};
}

pub(crate) use open_enums;

/// Reads `"variant"` and `{"variant": data}`.
pub(crate) struct Visitor<T>(PhantomData<T>);

impl<T> Default for Visitor<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<'de, T: DerivedDeserialize<'de>> SerdeVisitor<'de> for Visitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str("a word, or an object with one word as its key")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<T, E> {
        T::deserialize_derived(word.into_deserializer())
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize_derived(EnumAccessDeserializer::new(IgnoreUnknownData(MapAccessDeserializer::new(map))))
    }
}

/// Ignores the data of an unknown variant, which is read as a unit variant.
struct IgnoreUnknownData<A>(A);

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for IgnoreUnknownData<A> {
    type Error = A::Error;
    type Variant = IgnoreUnknownData<A::Variant>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self::Variant), A::Error> {
        let (value, variant) = self.0.variant_seed(seed)?;
        Ok((value, IgnoreUnknownData(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for IgnoreUnknownData<A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.0.newtype_variant::<IgnoredAny>().map(drop)
    }

    #[inline]
    fn newtype_variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<V::Value, A::Error> {
        self.0.newtype_variant_seed(seed)
    }

    fn tuple_variant<V: SerdeVisitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.0.tuple_variant(len, visitor)
    }

    fn struct_variant<V: SerdeVisitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.0.struct_variant(fields, visitor)
    }
}

#[cfg(test)]
mod tests {
    use crate::wire::codec::{decode, decode_json};
    use crate::wire::{
        GpuProcessColumns, GpuProcessKind, Hello, Message, Owner, Presence, ProcessColumns, ProcessFacts, ReplyOutcome,
        Scope,
    };

    #[test]
    fn unknown_messages_are_decoded_as_unknown() {
        for line in [r#"{"weather":{"sky":["blue",{"deep":null}]}}"#, r#"{"weather":null}"#, r#""weather""#] {
            assert_eq!(decode(line.as_bytes()), Ok(Message::Unknown), "{line}");
        }
        for broken in ["{}", "[]", "7", r#"{"echo":7}"#, r#""echo""#, r#"{"weather":1,"echo":{"id":1}}"#] {
            assert!(decode(broken.as_bytes()).is_err(), "{broken}");
        }
    }

    #[test]
    fn an_unknown_variant_does_not_affect_other_fields() {
        let hello = r#"{"protocol":1,"probe_version":"9","scope":{"virtual_machine":"vm-1"}}"#;
        let hello: Hello = decode_json(hello.as_bytes()).expect("decodes");
        assert_eq!((hello.scope, &*hello.probe_version), (Some(Scope::Unknown), "9"));
        let facts: ProcessFacts = decode_json(br#"{"pid":7,"owner":{"job_array":{"id":[1]}}}"#).expect("decodes");
        assert_eq!((facts.owner, facts.pid), (Some(Owner::Unknown), 7));
        assert_eq!(decode_json::<Owner>(br#"{"service":"a.service"}"#), Ok(Owner::Service("a.service".into())));
        let processes: ProcessColumns =
            decode_json(br#"{"rows":2,"pid":[7,8],"presence":["asleep","gone"]}"#).expect("decodes");
        assert_eq!(processes.presence, [Some(Presence::Unknown), Some(Presence::Gone)]);
        let on_gpus: GpuProcessColumns = decode_json(br#"{"rows":2,"kind":"N"}"#).expect("decodes");
        assert_eq!(on_gpus.kind, [Some(GpuProcessKind::Unknown); 2]);
        let reply = decode(br#"{"reply":{"id":7,"outcome":{"queued":{"behind":2}}}}"#).expect("decodes");
        let Message::Reply(reply) = reply else { panic!("{reply:?}") };
        assert_eq!((reply.id, reply.outcome), (7, ReplyOutcome::Unknown));
    }

    #[test]
    fn unknown_variants_are_encoded_as_unknown() {
        // Recordings contain process facts.
        let facts = ProcessFacts { owner: Some(Owner::Unknown), ..ProcessFacts::default() };
        let json = serde_json::to_string(&facts).expect("encodes");
        assert_eq!(json, r#"{"pid":0,"owner":"unknown"}"#);
        assert_eq!(serde_json::from_str::<ProcessFacts>(&json).expect("decodes"), facts);
    }
}
