//! Options of a new identifier, for connections and for datagrams.

/// The options that both kinds of identifiers have, and their local address.
macro_rules! with_options {
    ($type:ident, $(#[$tos:meta])*) => {
        impl $type {
            /// Sets the type of service of its packets: the byte of IPv4's header, or IPv6's traffic class.
            /// Unless set, it is the one that the administrator has set for the device
            /// (`default_roce_tos` in configfs), otherwise 0.
            ///
            $(#[$tos])*
            ///
            /// # Errors
            ///
            /// The errno.
            #[doc(alias = "RDMA_OPTION_ID_TOS")]
            pub fn set_tos(&mut self, tos: u8) -> Result<()> {
                self.id.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, tos)
            }

            /// Sets whether the local address can be used by several identifiers at once; off unless set.
            /// Set it before [`bind`](Self::bind). A port that is listened at stays in use.
            ///
            /// # Errors
            ///
            /// The errno.
            #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
            pub fn set_reuse_addr(&mut self, on: bool) -> Result<()> {
                let on = c_int::from(on);
                self.id
                    .set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, on)
            }

            /// Sets whether the IPv6 address `[::]` is for IPv6 only; unless set, the sysctl
            /// `net.ipv6.bindv6only` decides (off by default: it is for IPv4, too). Set it before
            /// [`bind`](Self::bind).
            ///
            /// # Errors
            ///
            /// The errno.
            #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
            pub fn set_ipv6_only(&mut self, on: bool) -> Result<()> {
                let on = c_int::from(on);
                self.id
                    .set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, on)
            }

            /// The local address; `None` before it has one.
            #[must_use]
            pub fn local_addr(&self) -> Option<SocketAddr> {
                self.id.local_addr()
            }
        }
    };
}
pub(super) use with_options;
