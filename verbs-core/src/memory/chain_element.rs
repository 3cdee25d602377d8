//! Elements that a chain of requests copies.

use verbs_sys::ibv_sge;

use super::element::{Gather, Scatter, Sge};
use super::list::as_sge;
use super::shared_element::SharedElement;
use super::subrange::Part;

/// An element that a [`RequestChain`](crate::work_request::RequestChain) can send from.
///
/// Every [`Gather`] is one, and [`SharedElement`]: a chain copies its elements, so they do not have to
/// be laid out as C's. It is sealed: types of other crates cannot implement it.
pub trait ChainGather: Part {
    /// As C has it.
    #[doc(hidden)]
    fn to_c(&self) -> ibv_sge;
}

/// An element that a [`RequestChain`](crate::work_request::RequestChain) can receive or read into.
///
/// Every [`Scatter`] is one, and [`SharedElement`]. It is sealed: types of other crates cannot
/// implement it.
pub trait ChainScatter: ChainGather {}

impl<E: Gather> ChainGather for E {
    #[inline]
    fn to_c(&self) -> ibv_sge {
        as_sge(self)
    }
}

impl ChainGather for SharedElement<'_> {
    #[inline]
    fn to_c(&self) -> ibv_sge {
        as_sge(&Sge::from(*self))
    }
}

impl<E: Scatter + Gather> ChainScatter for E {}
impl ChainScatter for SharedElement<'_> {}
