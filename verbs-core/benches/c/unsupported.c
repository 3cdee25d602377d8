// The rest of libibverbs' functions, so that any program can be loaded: calling one of them reports
// which, and ends the program. Apart from provider.c because it must not see their prototypes.

#include <stdio.h>
#include <stdlib.h>

#define UNSUPPORTED(name)                                                 \
	void name(void);                                                  \
	void name(void)                                                   \
	{                                                                 \
		fputs("the stand-in for libibverbs has no " #name "\n", stderr); \
		abort();                                                  \
	}

UNSUPPORTED(_ibv_query_gid_ex)
UNSUPPORTED(_ibv_query_gid_table)
UNSUPPORTED(ibv_ack_async_event)
UNSUPPORTED(ibv_attach_mcast)
UNSUPPORTED(ibv_create_ah_from_wc)
UNSUPPORTED(ibv_detach_mcast)
UNSUPPORTED(ibv_event_type_str)
UNSUPPORTED(ibv_fork_init)
UNSUPPORTED(ibv_get_device_index)
UNSUPPORTED(ibv_get_pkey_index)
UNSUPPORTED(ibv_import_device)
UNSUPPORTED(ibv_import_dm)
UNSUPPORTED(ibv_import_mr)
UNSUPPORTED(ibv_import_pd)
UNSUPPORTED(ibv_init_ah_from_wc)
UNSUPPORTED(ibv_is_fork_initialized)
UNSUPPORTED(ibv_modify_srq)
UNSUPPORTED(ibv_node_type_str)
UNSUPPORTED(ibv_port_state_str)
UNSUPPORTED(ibv_query_ece)
UNSUPPORTED(ibv_query_gid)
UNSUPPORTED(ibv_query_qp_data_in_order)
UNSUPPORTED(ibv_query_srq)
UNSUPPORTED(ibv_rate_to_mbps)
UNSUPPORTED(ibv_rate_to_mult)
UNSUPPORTED(ibv_reg_dmabuf_mr)
UNSUPPORTED(ibv_rereg_mr)
UNSUPPORTED(ibv_resize_cq)
UNSUPPORTED(ibv_resolve_eth_l2_from_gid)
UNSUPPORTED(ibv_set_ece)
UNSUPPORTED(ibv_unimport_dm)
UNSUPPORTED(ibv_unimport_mr)
UNSUPPORTED(ibv_unimport_pd)
UNSUPPORTED(ibv_wc_status_str)
UNSUPPORTED(mbps_to_ibv_rate)
UNSUPPORTED(mult_to_ibv_rate)
