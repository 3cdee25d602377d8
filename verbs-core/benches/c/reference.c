// The loops that ours are measured against, as a careful C programmer writes them.
//
// reference OPERATION COUNT runs one of them; data_path.rs has the same, in Rust.

#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE = 64, BATCH = 16, PAGES = 64, REMOTE = 0x70000000, SLOTS = 16 };

static char buffer[BATCH * MESSAGE];
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static struct ibv_pd *pd;

static void check(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "reference: %s failed\n", what);
	exit(1);
}

// Polls until `count` requests are done, the first of which is called `first`.
static inline void wait_for(struct ibv_wc *slots, uint64_t first, int count)
{
	for (int done = 0; done < count;) {
		int found = ibv_poll_cq(cq, SLOTS, slots);

		check(found >= 0, "ibv_poll_cq");
		for (int i = 0; i < found; i++) {
			check(slots[i].status == IBV_WC_SUCCESS, "a work request");
			check(slots[i].wr_id == first + done + i, "the order of completions");
		}
		done += found;
	}
}

static inline struct ibv_sge message(int index)
{
	return (struct ibv_sge){
		.addr = (uintptr_t)buffer + index * MESSAGE,
		.length = MESSAGE,
		.lkey = mr->lkey,
	};
}

static inline struct ibv_send_wr send_of(struct ibv_sge *sge, uint64_t wr_id)
{
	return (struct ibv_send_wr){
		.wr_id = wr_id,
		.sg_list = sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
}

static inline void post_send(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	check(!ibv_post_send(qp, wr, &bad), "ibv_post_send");
}

static inline void post_recv(struct ibv_recv_wr *wr)
{
	struct ibv_recv_wr *bad;

	check(!ibv_post_recv(qp, wr, &bad), "ibv_post_recv");
}

static void send1(uint64_t count)
{
	struct ibv_wc slots[SLOTS];

	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge = message(0);
		struct ibv_send_wr wr = send_of(&sge, i);

		post_send(&wr);
		wait_for(slots, i, 1);
	}
}

static void send1_reuse(uint64_t count)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_sge sge = message(0);
	struct ibv_send_wr wr = send_of(&sge, 0);

	for (uint64_t i = 0; i < count; i++) {
		wr.wr_id = i;
		post_send(&wr);
		wait_for(slots, i, 1);
	}
}

static void recv1(uint64_t count)
{
	struct ibv_wc slots[SLOTS];

	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge = message(0);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };

		post_recv(&wr);
		wait_for(slots, i, 1);
	}
}

static void recv1_reuse(uint64_t count)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_sge sge = message(0);
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

	for (uint64_t i = 0; i < count; i++) {
		wr.wr_id = i;
		post_recv(&wr);
		wait_for(slots, i, 1);
	}
}

static struct ibv_qp *create_qp(enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.qp_type = type,
		.cap = { .max_send_wr = BATCH, .max_recv_wr = BATCH, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *created = ibv_create_qp(pd, &init);

	check(created != NULL, "ibv_create_qp");
	return created;
}

static void srq1(uint64_t count)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_srq_init_attr init = { .attr = { .max_wr = BATCH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);

	check(srq != NULL, "ibv_create_srq");
	create_qp(IBV_QPT_RC, srq);
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge = message(0);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };
		struct ibv_recv_wr *bad;

		check(!ibv_post_srq_recv(srq, &wr, &bad), "ibv_post_srq_recv");
		wait_for(slots, i, 1);
	}
}

static void ud_send1(uint64_t count)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_qp *ud = create_qp(IBV_QPT_UD, NULL);
	struct ibv_ah_attr path = { .dlid = 1, .port_num = 1 };
	struct ibv_ah *ah = ibv_create_ah(pd, &path);

	check(ah != NULL, "ibv_create_ah");
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge = message(0);
		struct ibv_send_wr wr = send_of(&sge, i), *bad;

		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = ud->qp_num;
		wr.wr.ud.remote_qkey = 0x11;
		check(!ibv_post_send(ud, &wr, &bad), "ibv_post_send");
		wait_for(slots, i, 1);
	}
}

static void ud_recv1(uint64_t count)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_qp *ud = create_qp(IBV_QPT_UD, NULL);

	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge = message(0);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;

		check(!ibv_post_recv(ud, &wr, &bad), "ibv_post_recv");
		wait_for(slots, i, 1);
	}
}

static void batch16(uint64_t count)
{
	struct ibv_wc slots[SLOTS];

	for (uint64_t i = 0; i < count; i++) {
		struct ibv_sge sge[BATCH];
		struct ibv_send_wr wr[BATCH];

		for (int k = 0; k < BATCH; k++) {
			sge[k] = message(k);
			wr[k] = (struct ibv_send_wr){
				.wr_id = i * BATCH + k,
				.next = k + 1 < BATCH ? &wr[k + 1] : NULL,
				.sg_list = &sge[k],
				.num_sge = 1,
				.opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED,
			};
		}
		post_send(wr);
		wait_for(slots, i * BATCH, BATCH);
	}
}

static void sep16(uint64_t count)
{
	struct ibv_wc slots[SLOTS];

	for (uint64_t i = 0; i < count; i++) {
		for (int k = 0; k < BATCH; k++) {
			struct ibv_sge sge = message(k);
			struct ibv_send_wr wr = send_of(&sge, i * BATCH + k);

			post_send(&wr);
		}
		wait_for(slots, i * BATCH, BATCH);
	}
}

// A chain of 16 sends that was built once, each with a completion.
static void chain16(uint64_t count)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_sge sge[BATCH];
	struct ibv_send_wr wr[BATCH];

	for (int k = 0; k < BATCH; k++) {
		sge[k] = message(k);
		wr[k] = send_of(&sge[k], 0);
		wr[k].next = k + 1 < BATCH ? &wr[k + 1] : NULL;
	}
	for (uint64_t i = 0; i < count; i++) {
		for (int k = 0; k < BATCH; k++)
			wr[k].wr_id = i * BATCH + k;
		post_send(wr);
		wait_for(slots, i * BATCH, BATCH);
	}
}

// A chain of sends that was built once, with one completion.
static inline void quiet_chain(uint64_t count, int len)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_sge sge[BATCH];
	struct ibv_send_wr wr[BATCH];

	for (int k = 0; k < len; k++) {
		sge[k] = message(k);
		wr[k] = send_of(&sge[k], 0);
		wr[k].next = k + 1 < len ? &wr[k + 1] : NULL;
		wr[k].send_flags = k + 1 < len ? 0 : IBV_SEND_SIGNALED;
	}
	for (uint64_t i = 0; i < count; i++) {
		wr[len - 1].wr_id = i;
		post_send(wr);
		wait_for(slots, i, 1);
	}
}

static void quiet4(uint64_t count)
{
	quiet_chain(count, 4);
}

static void quiet16(uint64_t count)
{
	quiet_chain(count, BATCH);
}

// A chain of writes that was built once, each of which is patched, with one completion.
static inline void patched_chain(uint64_t count, int len)
{
	struct ibv_wc slots[SLOTS];
	struct ibv_sge sge[PAGES];
	struct ibv_send_wr wr[PAGES];
	struct {
		struct ibv_sge message;
		uint64_t remote_addr;
		uint32_t rkey;
	} pages[PAGES];

	for (int k = 0; k < len; k++) {
		pages[k].message = message(k % BATCH);
		pages[k].remote_addr = REMOTE + k * MESSAGE;
		pages[k].rkey = 9;
		wr[k] = (struct ibv_send_wr){
			.next = k + 1 < len ? &wr[k + 1] : NULL,
			.sg_list = &sge[k],
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = k + 1 < len ? 0 : IBV_SEND_SIGNALED,
		};
	}
	for (uint64_t i = 0; i < count; i++) {
		for (int k = 0; k < len; k++) {
			sge[k] = pages[k].message;
			wr[k].wr.rdma.remote_addr = pages[k].remote_addr;
			wr[k].wr.rdma.rkey = pages[k].rkey;
		}
		wr[len - 1].wr_id = i;
		post_send(wr);
		wait_for(slots, i, 1);
	}
}

static void patched1(uint64_t count)
{
	patched_chain(count, 1);
}

static void patched4(uint64_t count)
{
	patched_chain(count, 4);
}

static void patched16(uint64_t count)
{
	patched_chain(count, BATCH);
}

static void chain64(uint64_t count)
{
	patched_chain(count, PAGES);
}

static void poll0(uint64_t count)
{
	struct ibv_wc slots[SLOTS];

	for (uint64_t i = 0; i < count; i++)
		check(ibv_poll_cq(cq, SLOTS, slots) == 0, "an empty poll");
}

// Sends of a batch of `size`, by the extended interfaces.
static inline void extended(uint64_t count, int size)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4 * BATCH, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *queue = ibv_create_cq_ex(pd->context, &cq_init);

	check(queue != NULL, "ibv_create_cq_ex");
	struct ibv_qp_init_attr_ex init = {
		.send_cq = ibv_cq_ex_to_cq(queue),
		.recv_cq = ibv_cq_ex_to_cq(queue),
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = BATCH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(ibv_create_qp_ex(pd->context, &init));
	struct ibv_poll_cq_attr attr = { 0 };

	check(qpx != NULL, "ibv_create_qp_ex");
	for (uint64_t i = 0; i < count; i++) {
		ibv_wr_start(qpx);
		for (int k = 0; k < size; k++) {
			struct ibv_sge sge = message(k);

			qpx->wr_id = i * size + k;
			qpx->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send(qpx);
			ibv_wr_set_sge(qpx, sge.lkey, sge.addr, sge.length);
		}
		check(!ibv_wr_complete(qpx), "ibv_wr_complete");
		int done = 0;
		while (ibv_start_poll(queue, &attr))
			;
		do {
			check(queue->status == IBV_WC_SUCCESS, "a work request");
			check(queue->wr_id == i * size + done++, "the order of completions");
		} while (!ibv_next_poll(queue));
		ibv_end_poll(queue);
	}
}

static void ex1(uint64_t count)
{
	extended(count, 1);
}

static void ex16(uint64_t count)
{
	extended(count, BATCH);
}

// A queue pair is created, connected to itself, and destroyed.
static void connect1(uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.qp_type = IBV_QPT_RC,
			.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		};
		struct ibv_qp *other = ibv_create_qp(pd, &init);
		struct ibv_port_attr port;

		check(other != NULL, "ibv_create_qp");
		check(!ibv_query_port(other->context, 1, &port), "ibv_query_port");
		struct ibv_qp_attr to_init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
		check(!ibv_modify_qp(other, &to_init,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		      "ibv_modify_qp to INIT");
		struct ibv_qp_attr to_rtr = {
			.qp_state = IBV_QPS_RTR,
			.path_mtu = port.active_mtu,
			.dest_qp_num = other->qp_num,
			.ah_attr = { .dlid = port.lid, .port_num = 1 },
		};
		check(!ibv_modify_qp(other, &to_rtr,
				     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
		      "ibv_modify_qp to RTR");
		struct ibv_qp_attr to_rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7 };
		check(!ibv_modify_qp(other, &to_rts,
				     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					     IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC),
		      "ibv_modify_qp to RTS");
		check(!ibv_destroy_qp(other), "ibv_destroy_qp");
	}
}

static const struct {
	const char *name;
	void (*run)(uint64_t count);
} operations[] = {
	{ "send1", send1 },       { "send1_reuse", send1_reuse }, { "recv1", recv1 },
	{ "recv1_reuse", recv1_reuse }, { "batch16", batch16 },   { "sep16", sep16 },
	{ "chain16", chain16 },   { "chain64", chain64 },         { "poll0", poll0 },
	{ "connect1", connect1 }, { "srq1", srq1 },               { "ud_send1", ud_send1 },
	{ "ud_recv1", ud_recv1 }, { "quiet4", quiet4 },           { "quiet16", quiet16 },
	{ "ex1", ex1 },           { "ex16", ex16 },
	{ "patched1", patched1 }, { "patched4", patched4 },       { "patched16", patched16 },
};

static void set_up(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	check(devices && devices[0], "ibv_get_device_list");
	struct ibv_context *context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	check(pd != NULL, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	check(mr != NULL, "ibv_reg_mr");
	cq = ibv_create_cq(context, 4 * BATCH, NULL, NULL, 0);
	check(cq != NULL, "ibv_create_cq");
	qp = create_qp(IBV_QPT_RC, NULL);
}

int main(int argc, char **argv)
{
	check(argc == 3, "reading `reference OPERATION COUNT`");
	set_up();
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
		if (!strcmp(operations[i].name, argv[1])) {
			operations[i].run(strtoull(argv[2], NULL, 10));
			return 0;
		}
	check(0, "finding the operation");
}
