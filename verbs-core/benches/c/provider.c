// A stand-in for libibverbs.so.1 that completes every work request at once.
//
// One InfiniBand device with one port. A signalled request is done when it is posted; no byte
// moves. So what a program spends outside this library is what its binding costs. A receive of no
// bytes waits for a message that never comes.

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// Completions that a queue does hold; a power of two, and more than any loop has outstanding. What a
// queue may be asked to hold is what thousands of queue pairs could have outstanding.
enum { ROOM = 256, MAX_CQE = 1 << 20 };

struct completion {
	uint64_t wr_id;
	enum ibv_wc_opcode opcode;
	uint32_t qp_num;
};

struct queue {
	union {
		struct ibv_cq cq; // first, so that one is the other
		struct ibv_cq_ex extended;
	};
	uint32_t head, tail;
	struct completion ring[ROOM];
};

struct shared_queue {
	struct ibv_srq srq; // as above
	struct ibv_qp *qp; // the one that its messages arrive on
};

static struct ibv_device device = {
	.node_type = IBV_NODE_CA,
	.transport_type = IBV_TRANSPORT_IB,
	.name = "instant0",
	.dev_name = "uverbs-instant0",
};

static void complete(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t qp_num)
{
	struct queue *queue = (struct queue *)cq;

	if (queue->tail - queue->head == ROOM)
		abort();
	queue->ring[queue->tail++ % ROOM] = (struct completion){ wr_id, opcode, qp_num };
}

static enum ibv_wc_opcode completed_as(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)bad;
	for (; wr; wr = wr->next)
		if (wr->send_flags & IBV_SEND_SIGNALED)
			complete(qp->send_cq, wr->wr_id, completed_as(wr->opcode), qp->qp_num);
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)bad;
	for (; wr; wr = wr->next)
		if (wr->num_sge > 0)
			complete(qp->recv_cq, wr->wr_id, IBV_WC_RECV, qp->qp_num);
	return 0;
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_recv(((struct shared_queue *)srq)->qp, wr, bad);
}

static int poll_cq(struct ibv_cq *cq, int room, struct ibv_wc *wc)
{
	struct queue *queue = (struct queue *)cq;
	int found = 0;

	for (; found < room && queue->head != queue->tail; found++) {
		struct completion *done = &queue->ring[queue->head++ % ROOM];

		wc[found] = (struct ibv_wc){
			.wr_id = done->wr_id,
			.status = IBV_WC_SUCCESS,
			.opcode = done->opcode,
			.qp_num = done->qp_num,
		};
	}
	return found;
}

// Nothing is ever announced: a loop that waits for that hangs.
static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	(void)cq;
	(void)solicited_only;
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct queue *queue = (struct queue *)cq;

	(void)attr;
	if (queue->head == queue->tail)
		return ENOENT;
	cq->wr_id = queue->ring[queue->head % ROOM].wr_id;
	cq->status = IBV_WC_SUCCESS;
	queue->head++;
	return 0;
}

static int next_poll(struct ibv_cq_ex *cq)
{
	return start_poll(cq, NULL);
}

static void end_poll(struct ibv_cq_ex *cq)
{
	(void)cq;
}

// What the completion was that the queue is at.
static struct completion *polled(struct ibv_cq_ex *cq)
{
	struct queue *queue = (struct queue *)cq;

	return &queue->ring[(queue->head - 1) % ROOM];
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq)
{
	return polled(cq)->opcode;
}

static uint32_t read_qp_num(struct ibv_cq_ex *cq)
{
	return polled(cq)->qp_num;
}

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *init)
{
	struct queue *queue =
		(struct queue *)ibv_create_cq(context, init->cqe, init->cq_context, init->channel, init->comp_vector);

	if (!queue)
		return NULL;
	queue->extended.start_poll = start_poll;
	queue->extended.next_poll = next_poll;
	queue->extended.end_poll = end_poll;
	queue->extended.read_opcode = read_opcode;
	queue->extended.read_qp_num = read_qp_num;
	return &queue->extended;
}

static void wr_start(struct ibv_qp_ex *qp)
{
	(void)qp;
}

static int wr_complete(struct ibv_qp_ex *qp)
{
	(void)qp;
	return 0;
}

static void wr_send(struct ibv_qp_ex *qp)
{
	complete(qp->qp_base.send_cq, qp->wr_id, IBV_WC_SEND, qp->qp_base.qp_num);
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	(void)qp;
	(void)lkey;
	(void)addr;
	(void)length;
}

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t num_sge, const struct ibv_sge *list)
{
	(void)qp;
	(void)num_sge;
	(void)list;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	(void)qp;
	(void)addr;
	(void)length;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct ibv_qp_ex *extended = (struct ibv_qp_ex *)qp;

	return extended->wr_start ? extended : NULL;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *init)
{
	struct ibv_qp_init_attr plain = { .send_cq = init->send_cq, .recv_cq = init->recv_cq, .qp_type = init->qp_type };
	struct ibv_qp *qp = ibv_create_qp(init->pd, &plain);
	struct ibv_qp_ex *extended = (struct ibv_qp_ex *)qp;

	(void)context;
	if (!qp)
		return NULL;
	extended->wr_start = wr_start;
	extended->wr_complete = wr_complete;
	extended->wr_abort = wr_start;
	extended->wr_send = wr_send;
	extended->wr_set_sge = wr_set_sge;
	extended->wr_set_sge_list = wr_set_sge_list;
	extended->wr_set_inline_data = wr_set_inline_data;
	return qp;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));

	if (!channel)
		return NULL;
	channel->context = context;
	channel->fd = eventfd(0, EFD_CLOEXEC);
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	(void)channel;
	(void)cq;
	(void)cq_context;
	errno = EAGAIN;
	return -1;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
	(void)cq;
	(void)count;
}

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	if (list)
		list[0] = &device;
	if (count)
		*count = 1;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *asked)
{
	return asked->name;
}

__be64 ibv_get_device_guid(struct ibv_device *asked)
{
	(void)asked;
	return 1;
}

struct ibv_context *ibv_open_device(struct ibv_device *asked)
{
	struct verbs_context *verbs = calloc(1, sizeof(*verbs));
	struct ibv_context *context = &verbs->context;

	if (!verbs)
		return NULL;
	verbs->sz = sizeof(*verbs);
	verbs->create_cq_ex = create_cq_ex;
	verbs->create_qp_ex = create_qp_ex;
	context->abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->device = asked;
	context->cmd_fd = -1;
	context->async_fd = eventfd(0, EFD_CLOEXEC); // never readable, and it can be polled
	context->num_comp_vectors = 1;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	context->ops.post_srq_recv = post_srq_recv;
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	return context;
}

int ibv_close_device(struct ibv_context *context)
{
	close(context->async_fd);
	free(verbs_get_ctx(context));
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	(void)context;
	(void)event;
	errno = EAGAIN;
	return -1;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	(void)context;
	*attr = (struct ibv_device_attr){
		.max_mr_size = UINT64_MAX,
		.page_size_cap = 4096,
		.max_qp = 1 << 14,
		.max_qp_wr = ROOM,
		.max_sge = 16,
		.max_cq = 16,
		.max_cqe = MAX_CQE,
		.max_mr = 16,
		.max_pd = 16,
		.max_qp_rd_atom = 16,
		.max_qp_init_rd_atom = 16,
		.atomic_cap = IBV_ATOMIC_HCA,
		.max_ah = 16,
		.max_srq = 16,
		.max_srq_wr = ROOM,
		.max_srq_sge = 16,
		.max_pkeys = 1,
		.phys_port_cnt = 1,
	};
	return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *compat)
{
	struct ibv_port_attr attr = {
		.state = IBV_PORT_ACTIVE,
		.max_mtu = IBV_MTU_4096,
		.active_mtu = IBV_MTU_4096,
		.gid_tbl_len = 1,
		.max_msg_sz = 1u << 30,
		.pkey_tbl_len = 1,
		.lid = 1,
		.sm_lid = 1,
		.active_width = 2,
		.active_speed = 32,
		.phys_state = 5,
		.link_layer = IBV_LINK_LAYER_INFINIBAND,
	};

	(void)context;
	if (port != 1)
		return EINVAL;
	// The symbol fills the part of the struct that was there when it was made.
	memcpy(compat, &attr, offsetof(struct ibv_port_attr, port_cap_flags2));
	return 0;
}

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context;
	(void)port;
	if (index != 0)
		return -1;
	*pkey = 0xffff;
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	if (pd)
		pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	(void)iova;
	(void)access;
	if (!mr)
		return NULL;
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = 0x100;
	return mr;
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *user, struct ibv_comp_channel *channel, int vector)
{
	struct queue *queue = calloc(1, sizeof(*queue));

	(void)vector;
	if (!queue || cqe > MAX_CQE) {
		free(queue);
		errno = ENOMEM;
		return NULL;
	}
	queue->cq.context = context;
	queue->cq.channel = channel;
	queue->cq.cq_context = user;
	queue->cq.cqe = cqe;
	return &queue->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct ibv_qp *qp = calloc(1, sizeof(struct ibv_qp_ex));

	if (!qp)
		return NULL;
	qp->context = pd->context;
	qp->pd = pd;
	qp->send_cq = init->send_cq;
	qp->recv_cq = init->recv_cq;
	qp->qp_type = init->qp_type;
	qp->qp_num = 0x11;
	qp->state = IBV_QPS_RESET;
	qp->srq = init->srq;
	if (qp->srq)
		((struct shared_queue *)qp->srq)->qp = qp;
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_STATE)
		qp->state = attr->qp_state;
	return 0;
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask;
	memset(attr, 0, sizeof(*attr));
	memset(init, 0, sizeof(*init));
	attr->qp_state = attr->cur_qp_state = qp->state;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	free(qp);
	return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	struct shared_queue *queue = calloc(1, sizeof(*queue));

	(void)init;
	if (!queue)
		return NULL;
	queue->srq.context = pd->context;
	queue->srq.pd = pd;
	return &queue->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	free(srq);
	return 0;
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah = calloc(1, sizeof(*ah));

	(void)attr;
	if (!ah)
		return NULL;
	ah->context = pd->context;
	ah->pd = pd;
	return ah;
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	free(ah);
	return 0;
}
