//! Loads the library. It stays loaded until the process ends.

use super::symbol_table::SymbolTable;
use super::{DriverAnomalies, Library};
use nvml_wrapper_sys::bindings as sys;
use std::ffi::{CStr, CString, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

impl Library {
    /// Loads the library and looks up its functions. `path` is a file name for the loader's search, or a path.
    /// The error is the loader's sentence.
    pub(crate) fn open(path: &str) -> Result<Self, LoadError> {
        let name = CString::new(path).map_err(|_| LoadError::unusable("the path holds a NUL byte"))?;
        // SAFETY: a NUL-terminated path. The library's constructors run, as they would for any user of the driver.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(library) = NonNull::new(library) else { return Err(loader_error()) };
        let table = SymbolTable::resolve(library);
        let early_r535 = table.conf_compute_mem_size.is_some() && table.process_detail_list.is_none();
        let path = table.init.and_then(loaded_from).unwrap_or_else(|| path.to_owned());
        Ok(Self { table, path, early_r535, anomalies: DriverAnomalies::default() })
    }

    /// Where it was loaded from.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// What this driver did that no driver should.
    pub(crate) fn anomalies(&self) -> &DriverAnomalies {
        &self.anomalies
    }
}

/// Why a library cannot be loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LoadError {
    /// A file is missing: the library itself, or one that it needs.
    pub(crate) is_missing: bool,
    /// The message of the dynamic loader.
    pub(crate) message: String,
}

impl LoadError {
    fn unusable(message: &str) -> Self {
        Self { is_missing: false, message: message.to_owned() }
    }

    /// `dlerror` has no error codes: its text alone tells the cases apart.
    fn of_dlerror(message: String) -> Self {
        Self { is_missing: message.contains("No such file"), message }
    }
}

fn loader_error() -> LoadError {
    // SAFETY: dlerror returns null or a text that stays until this thread's next call of the loader.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return LoadError::unusable("the loader gave no reason");
    }
    // SAFETY: see above; it is copied at once.
    LoadError::of_dlerror(unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned())
}

fn loaded_from(function: unsafe extern "C" fn() -> sys::nvmlReturn_t) -> Option<String> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; `info` is the out parameter.
    if unsafe { libc::dladdr(function as *const c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeroed before, and written when the call succeeds; the name is null or a text of the loader's that stays.
    unsafe {
        let info = info.assume_init();
        (!info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned())
    }
}
