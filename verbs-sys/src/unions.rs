//! Names for the fields of C's anonymous unions, which bindgen can only number.

use core::ffi::c_void;

use crate::{
    __be32, ibv_mw, ibv_mw_bind_info, ibv_send_wr, ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_wc,
};

impl ibv_send_wr {
    /// The immediate data, in network byte order.
    ///
    /// # Safety
    ///
    /// This field of the union, or the key in its place, is initialised.
    #[inline]
    #[must_use]
    pub const unsafe fn imm_data(&self) -> __be32 {
        // SAFETY: the caller promises that one of two fields is initialised; both are 32 bits
        // without meaning of their own.
        unsafe { self.__bindgen_anon_1.imm_data }
    }

    /// Sets the immediate data, in network byte order, for an opcode that sends it.
    #[inline]
    pub const fn set_imm_data(&mut self, imm_data: __be32) {
        self.__bindgen_anon_1.imm_data = imm_data;
    }

    /// The key to invalidate.
    ///
    /// # Safety
    ///
    /// This field of the union, or the immediate data in its place, is initialised.
    #[inline]
    #[must_use]
    pub const unsafe fn invalidate_rkey(&self) -> u32 {
        // SAFETY: the caller promises that one of two fields is initialised; both are 32 bits
        // without meaning of their own.
        unsafe { self.__bindgen_anon_1.invalidate_rkey }
    }

    /// Sets the key to invalidate: the peer's for `IBV_WR_SEND_WITH_INV`, a local one for
    /// `IBV_WR_LOCAL_INV`.
    #[inline]
    pub const fn set_invalidate_rkey(&mut self, invalidate_rkey: u32) {
        self.__bindgen_anon_1.invalidate_rkey = invalidate_rkey;
    }

    /// The memory window to bind.
    ///
    /// # Safety
    ///
    /// This field of the union is initialised.
    #[inline]
    #[must_use]
    pub const unsafe fn bind_mw(&self) -> &ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
        // SAFETY: the caller promises that `bind_mw` is the initialised field.
        unsafe { &self.__bindgen_anon_2.bind_mw }
    }

    /// Sets the memory window to bind, its new key and what it is bound to, for `IBV_WR_BIND_MW`.
    #[inline]
    pub const fn set_bind_mw(&mut self, mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info) {
        self.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw,
            rkey,
            bind_info,
        };
    }

    /// The header of a segmented send.
    ///
    /// # Safety
    ///
    /// This field of the union is initialised.
    #[inline]
    #[must_use]
    pub const unsafe fn tso(&self) -> &ibv_send_wr__bindgen_ty_4__bindgen_ty_2 {
        // SAFETY: the caller promises that `tso` is the initialised field.
        unsafe { &self.__bindgen_anon_2.tso }
    }

    /// Sets the header and the segment size of a segmented send, for `IBV_WR_TSO`.
    #[inline]
    pub const fn set_tso(&mut self, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
        self.__bindgen_anon_2.tso = ibv_send_wr__bindgen_ty_4__bindgen_ty_2 { hdr, hdr_sz, mss };
    }
}

impl ibv_wc {
    /// The sender's immediate data, in network byte order, if `wc_flags` has `IBV_WC_WITH_IMM`.
    ///
    /// # Safety
    ///
    /// This field of the union, or the key in its place, is initialised.
    #[inline]
    #[must_use]
    pub const unsafe fn imm_data(&self) -> __be32 {
        // SAFETY: the caller promises that one of two fields is initialised; both are 32 bits
        // without meaning of their own.
        unsafe { self.__bindgen_anon_1.imm_data }
    }

    /// The local key that the sender invalidated, if `wc_flags` has `IBV_WC_WITH_INV`.
    ///
    /// # Safety
    ///
    /// This field of the union, or the immediate data in its place, is initialised.
    #[inline]
    #[must_use]
    pub const unsafe fn invalidated_rkey(&self) -> u32 {
        // SAFETY: the caller promises that one of two fields is initialised; both are 32 bits
        // without meaning of their own.
        unsafe { self.__bindgen_anon_1.invalidated_rkey }
    }
}
