/* What bindgen reads: the public verbs API and nothing else. */
#include <infiniband/verbs.h>
