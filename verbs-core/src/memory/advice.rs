//! Advice about regions that are paged on demand.
#![expect(unsafe_code, reason = "passes elements to C")]

use verbs_sys::{IBV_ADVISE_MR_FLAG_FLUSH, ibv_advise_mr, ibv_advise_mr_advice, ibv_sge};

use super::Element;
use crate::codes::macros::{man, open_enum};
use crate::domain::ProtectionDomain;
use crate::error::{Error, Result};
use crate::ffi::ret;

open_enum! {
    /// The advice of [`ProtectionDomain::advise_mr`], about memory that is paged on demand.
    MrAdvice(u32), "ibv_advise_mr_advice";
    /// Fault the pages in, for reading.
    PREFETCH = IBV_ADVISE_MR_ADVICE_PREFETCH "IBV_ADVISE_MR_ADVICE_PREFETCH",
    /// Fault the pages in, for writing. The region must have
    /// [`LOCAL_WRITE`](crate::AccessFlags::LOCAL_WRITE).
    PREFETCH_WRITE = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE",
    /// Give the device those pages that are there, and fault none in.
    PREFETCH_NO_FAULT =
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT",
}

impl ProtectionDomain {
    /// Advises the device about memory that is paged on demand, so that its first accesses need not wait
    /// for the pages.
    ///
    /// With `flush` it returns when the advice has been followed. Otherwise that happens some time
    /// later, and errors are not reported. The advice does not change the memory's contents. Pages that
    /// were faulted in may be taken away again.
    ///
    /// ```no_run
    /// # fn main() -> verbs_core::Result<()> {
    /// use verbs_core::{AccessFlags, Context};
    /// use verbs_core::memory::MrAdvice;
    ///
    /// let pd = Context::first_active()?.alloc_pd()?;
    /// let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    /// let mut region = pd.reg_mr_with(vec![0_u8; 1 << 30], access)?;
    /// let first = region.scatter_element(..1 << 20)?;
    /// pd.advise_mr(MrAdvice::PREFETCH_WRITE, true, &[first])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Unsupported`] if the device, the kernel or the library has no such advice.
    /// - The errno: `EFAULT` if an element is not within its region, `ENOENT` for a key of no region of
    ///   this domain, `EPERM` for writing to a region that cannot be written, `EINVAL` for a region
    ///   that is not [`ON_DEMAND`](crate::AccessFlags::ON_DEMAND), or for no elements.
    #[doc = man!("ibv_advise_mr")]
    #[doc(alias = "ibv_advise_mr")]
    #[doc(alias = "IBV_ADVISE_MR_FLAG_FLUSH")]
    pub fn advise_mr<E: Element>(
        &self,
        advice: MrAdvice,
        flush: bool,
        elements: &[E],
    ) -> Result<()> {
        let num_sge = u32::try_from(elements.len()).map_err(|_too_many| Error::OutOfRange {
            what: "num_sge",
            value: elements.len() as u64,
            min: 1,
            max: u32::MAX.into(),
        })?;
        let flags = if flush { IBV_ADVISE_MR_FLAG_FLUSH } else { 0 };
        let advice = ibv_advise_mr_advice(advice.as_raw());
        // An `Element` is an `ibv_sge`; C only reads them.
        let list = elements.as_ptr().cast::<ibv_sge>().cast_mut();
        // SAFETY: the PD is alive, and the list is as long as the slice. The kernel looks the keys up
        // in this domain, and checks the addresses against the regions.
        let ret = unsafe { ibv_advise_mr(self.as_ptr(), advice, flags, list, num_sge) };
        ret::errno("ibv_advise_mr", ret)
    }
}
