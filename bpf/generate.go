// SPDX-License-Identifier: Apache-2.0

package bpf

// The objects are committed, so that building needs no clang. What clang makes of
// c/ depends on nothing but c/ and the headers of libbpf-dev: paths are relative.
//
//go:generate ./generate.sh dispatch
//go:generate ./generate.sh fold
//go:generate ./generate.sh ack
//go:generate ./generate.sh absorb
//go:generate ./generate.sh answer_tc
//go:generate ./generate.sh chunk
//go:generate ./generate.sh collect
//go:generate ./generate.sh pump
//go:generate ./generate.sh clone
//go:generate ./generate.sh reduce
//go:generate ./generate.sh complete
//go:generate ./generate.sh reduced
//go:generate ./generate.sh pass
//go:generate ./generate.sh send
//go:generate ./generate.sh layout -type quern_head -type quern_ack -type quern_job -type quern_stream -type quern_target -type quern_cell -type quern_table -type quern_outgoing -type quern_config -type quern_chunk -type quern_hop -type quern_region -type quern_cast -type quern_event -type quern_part -type quern_group -output-suffix _test
