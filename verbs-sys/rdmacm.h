/* What bindgen reads for the feature `rdmacm`: the API of librdmacm. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
