//! `[cost]` of hosts.toml: the prices of GPU-hours and energy, for `gpufleet report`.

use super::diagnostic::Diagnostic;
use super::values::{mismatch, number, unknown_key};
use crate::wire::SafeText;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The keys of the table.
pub(super) const KEYS: [&str; 2] = ["gpu_hour", "kwh"];

/// The highest price.
pub const MAX_PRICE: f64 = 1_000_000.0;

const GPU_HOUR_EXAMPLE: &str = "gpu_hour = { \"H100\" = 2.5 }";

/// The prices of a report. Without a price there is no cost.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Prices {
    /// The price of a GPU-hour by a part of the model name. The first one that fits counts.
    pub gpu_hour: Vec<(String, f64)>,
    /// The price of a kilowatt-hour.
    pub kwh: Option<f64>,
}

impl Prices {
    /// Reads the table. Errors go to `diagnostics`; valid keys are kept. A longer part of a model name comes first.
    pub(super) fn read(table: &DeTable<'_>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut read = Self::default();
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("gpu_hour", DeValue::Table(models)) => {
                    for (model, value) in models {
                        match model_price(model, value) {
                            Ok(price) => read.gpu_hour.push(price),
                            Err(diagnostic) => diagnostics.push(diagnostic),
                        }
                    }
                }
                ("gpu_hour", _) => diagnostics.push(mismatch("gpu_hour", "a table", value, GPU_HOUR_EXAMPLE)),
                ("kwh", _) => match price("kwh", value, "kwh = 0.3") {
                    Ok(price) => read.kwh = Some(price),
                    Err(diagnostic) => diagnostics.push(diagnostic),
                },
                (unknown, _) => diagnostics.push(unknown_key(unknown, key.span(), KEYS)),
            }
        }
        read.gpu_hour.sort_by_key(|(model, _)| std::cmp::Reverse(model.chars().count()));
        read
    }

    /// Returns these prices, and those of `other` where these have none.
    #[must_use]
    pub fn or(mut self, other: Self) -> Self {
        self.gpu_hour.extend(other.gpu_hour);
        self.kwh = self.kwh.or(other.kwh);
        self
    }

    /// The price of a GPU-hour of a model.
    pub fn of_model(&self, model: &SafeText) -> Option<f64> {
        let model = model.to_lowercase();
        self.gpu_hour.iter().find(|(part, _)| model.contains(&part.to_lowercase())).map(|(_, price)| *price)
    }
}

fn model_price(model: &Spanned<impl AsRef<str>>, value: &Spanned<DeValue<'_>>) -> Result<(String, f64), Diagnostic> {
    let name = model.get_ref().as_ref();
    if name.trim().is_empty() {
        let hint = format!("write a part of the model name, as in {GPU_HOUR_EXAMPLE}");
        return Err(Diagnostic::at(model.span(), "a price without a model", hint));
    }
    Ok((name.to_owned(), price(name, value, GPU_HOUR_EXAMPLE)?))
}

fn price(key: &str, value: &Spanned<DeValue<'_>>, example: &str) -> Result<f64, Diagnostic> {
    let Some(price) = number(value.get_ref()) else { return Err(mismatch(key, "a number", value, example)) };
    if !(0.0..=MAX_PRICE).contains(&price) {
        let hint = format!("a price is from 0 to {MAX_PRICE}, as in {example}");
        return Err(Diagnostic::at(value.span(), format!("`{key}` cannot be {price}"), hint));
    }
    Ok(price)
}

#[cfg(test)]
mod tests {
    use super::super::HostsFile;
    use super::*;

    fn parse(text: &str) -> Result<HostsFile, String> {
        HostsFile::parse("hosts.toml", &format!("{text}\n[[hosts]]\nname = \"a\"\n"), None)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_longest_part_of_a_model_name_decides_the_price() {
        let text = "[cost]\ngpu_hour = { A100 = 1.5, \"A100-SXM4-80GB\" = 2, h100 = 2.5 }\nkwh = 0.3";
        let prices = parse(text).expect("parses").prices;
        assert_eq!(prices.kwh, Some(0.3));
        let of = |model: &str| prices.of_model(&model.into());
        assert_eq!(
            (of("NVIDIA A100-SXM4-80GB"), of("NVIDIA A100-PCIE-40GB"), of("NVIDIA H100 80GB HBM3"), of("Tesla V100")),
            (Some(2.0), Some(1.5), Some(2.5), None)
        );
        assert_eq!(parse("").expect("parses").prices, Prices::default());
    }

    #[test]
    fn prices_of_the_command_line_come_first() {
        let file = parse("[cost]\ngpu_hour = { H100 = 2.5, A100 = 1.5 }\nkwh = 0.3").expect("parses").prices;
        let options = Prices { gpu_hour: vec![("H100".to_owned(), 9.0)], kwh: None };
        let prices = options.or(file);
        let of = |model: &str| prices.of_model(&model.into());
        assert_eq!((of("NVIDIA H100"), of("NVIDIA A100"), prices.kwh), (Some(9.0), Some(1.5), Some(0.3)));
    }

    #[test]
    fn errors_have_positions_and_hints() {
        for (lines, head, hint) in [
            ("[cost]\nkwhh = 1", "2:1: unknown key `kwhh`", "did you mean `kwh`?"),
            ("[cost]\nkwh = \"1\"", "2:7: `kwh` must be a number, not a string", "as in kwh = 0.3"),
            ("[cost]\nkwh = -1", "2:7: `kwh` cannot be -1", "a price is from 0 to 1000000, as in kwh = 0.3"),
            ("[cost]\nkwh = nan", "2:7: `kwh` cannot be NaN", "a price is from 0 to 1000000, as in kwh = 0.3"),
            (
                "[cost]\ngpu_hour = 2.5",
                "2:12: `gpu_hour` must be a table, not a float",
                "as in gpu_hour = { \"H100\" = 2.5 }",
            ),
            (
                "[cost]\ngpu_hour = { H100 = \"much\" }",
                "2:21: `H100` must be a number, not a string",
                "as in gpu_hour = { \"H100\" = 2.5 }",
            ),
            (
                "[cost]\ngpu_hour = { \"\" = 1 }",
                "2:14: a price without a model",
                "write a part of the model name, as in gpu_hour = { \"H100\" = 2.5 }",
            ),
            ("cost = 2.5", "1:1: `cost` must be a table, not a float", "write the header [cost]"),
            ("kwh = 0.3", "1:1: `kwh` is outside of any section", "put it under [cost]"),
        ] {
            let error = parse(lines).expect_err("an error");
            assert!(error.starts_with(&format!("hosts.toml:{head}\n")), "{error}");
            assert!(error.contains(&format!("= hint: {hint}\n")), "{error}");
        }
    }
}
