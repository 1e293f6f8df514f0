// SPDX-License-Identifier: Apache-2.0

//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package bpf

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/quernmr/quern/shuffle/wire"
)

func layoutTypes(t *testing.T) *btf.Spec {
	t.Helper()
	spec, err := loadCLayout()
	if err != nil {
		t.Fatal(err)
	}
	return spec.Types
}

// TestRunLayout compares the types of quern.h with Go's by the object's BTF: sizes, offsets and names
// of all fields, and that there is no padding that nobody named.
func TestRunLayout(t *testing.T) {
	types := layoutTypes(t)
	for name, goType := range map[string]reflect.Type{
		"quern_head":     reflect.TypeFor[wire.Head](),
		"quern_ack":      reflect.TypeFor[wire.AckBody](),
		"quern_job":      reflect.TypeFor[wire.Job](),
		"quern_stream":   reflect.TypeFor[wire.Stream](),
		"quern_target":   reflect.TypeFor[wire.Target](),
		"quern_cell":     reflect.TypeFor[wire.Cell](),
		"quern_table":    reflect.TypeFor[wire.Table](),
		"quern_outgoing": reflect.TypeFor[wire.Outgoing](),
		"quern_config":   reflect.TypeFor[wire.Settings](),
		"quern_chunk":    reflect.TypeFor[wire.Chunk](),
		"quern_hop":      reflect.TypeFor[wire.Hop](),
		"quern_region":   reflect.TypeFor[wire.Region](),
		"quern_cast":     reflect.TypeFor[wire.Cast](),
		"quern_event":    reflect.TypeFor[wire.Event](),
		"quern_part":     reflect.TypeFor[wire.Part](),
		"quern_group":    reflect.TypeFor[wire.Group](),
	} {
		t.Run(name, func(t *testing.T) {
			var c *btf.Struct
			if err := types.TypeByName(name, &c); err != nil {
				t.Fatal(err)
			}
			if uintptr(c.Size) != goType.Size() {
				t.Errorf("%d bytes in C, %d in Go", c.Size, goType.Size())
			}
			if len(c.Members) != goType.NumField() {
				t.Fatalf("%d fields in C, %d in Go", len(c.Members), goType.NumField())
			}
			at := uintptr(0)
			for i, m := range c.Members {
				f := goType.Field(i)
				size, err := btf.Sizeof(m.Type)
				if err != nil {
					t.Fatal(err)
				}
				if !strings.EqualFold(strings.ReplaceAll(m.Name, "_", ""), f.Name) {
					t.Errorf("field %d is %s in C, %s in Go", i, m.Name, f.Name)
				}
				if uintptr(m.Offset.Bytes()) != f.Offset || uintptr(size) != f.Type.Size() {
					t.Errorf("%s is at %d, %d bytes, in C; at %d, %d bytes, in Go", m.Name, m.Offset.Bytes(), size, f.Offset, f.Type.Size())
				}
				if f.Offset != at {
					t.Errorf("%d bytes before %s have no name", f.Offset-at, f.Name)
				}
				at = f.Offset + f.Type.Size()
			}
			if at != goType.Size() {
				t.Errorf("%d bytes at the end have no name", goType.Size()-at)
			}
		})
	}
}

// TestRunEnums compares the numbers that both languages write down.
func TestRunEnums(t *testing.T) {
	types := layoutTypes(t)
	for enum, want := range map[string]map[string]uint64{
		"quern_kind": {
			"QUERN_DATA": uint64(wire.Data), "QUERN_ACK": uint64(wire.Ack), "QUERN_PROBE": uint64(wire.Probe),
			"QUERN_PROBE_REPLY": uint64(wire.ProbeReply), "QUERN_BROADCAST": uint64(wire.Broadcast),
			"QUERN_BROADCAST_ACK": uint64(wire.BroadcastAck), "QUERN_ANSWER": uint64(wire.Answer),
			"QUERN_REDUCE": uint64(wire.Reduce), "QUERN_REDUCED": uint64(wire.Reduced),
		},
		"quern_op": {
			"QUERN_SUM": wire.OpSum, "QUERN_MIN": wire.OpMin, "QUERN_MAX": wire.OpMax, "QUERN_AND": wire.OpAnd,
			"QUERN_OR": wire.OpOr, "QUERN_XOR": wire.OpXor, "QUERN_SUM_BOUND": wire.OpSumBound,
		},
		"quern_mark_state": {
			"QUERN_MARK_NONE": wire.MarkNone, "QUERN_MARK_WRITING": wire.MarkWriting, "QUERN_MARK_STORED": wire.MarkStored,
		},
		"quern_answer_mode": {
			"QUERN_ANSWER_TX": uint64(wire.AnswerTX), "QUERN_ANSWER_TC": uint64(wire.AnswerTC), "QUERN_ANSWER_USER": uint64(wire.AnswerUser),
		},
		"quern_reason": {
			"QUERN_R_FOREIGN": uint64(wire.Foreign), "QUERN_R_MALFORMED": uint64(wire.Malformed), "QUERN_R_TOKEN": uint64(wire.BadToken),
			"QUERN_R_SEQ": uint64(wire.BadSeq), "QUERN_R_TAG": uint64(wire.BadTag), "QUERN_R_DUPLICATE": uint64(wire.Duplicate),
			"QUERN_R_UP_SHAPE": uint64(wire.UpShape), "QUERN_R_UP_TABLE": uint64(wire.UpTable), "QUERN_R_UP_FULL": uint64(wire.UpFull),
			"QUERN_R_UP_CHAIN": uint64(wire.UpChain), "QUERN_R_FOLDED": uint64(wire.Folded), "QUERN_R_LOST_CLAIM": uint64(wire.LostClaim),
			"QUERN_R_TORN": uint64(wire.Torn), "QUERN_R_ANSWERED": uint64(wire.Answered), "QUERN_R_ANSWER_UP": uint64(wire.AnswerUp),
			"QUERN_R_ANSWER_FAILED": uint64(wire.AnswerFailed), "QUERN_R_PROBED": uint64(wire.Probed), "QUERN_R_ABSORBED": uint64(wire.Absorbed),
			"QUERN_R_ABSORBED_UP": uint64(wire.AbsorbedUp), "QUERN_R_ACK_STRAY": uint64(wire.AckStray), "QUERN_R_ACK_TAG": uint64(wire.AckTag),
			"QUERN_R_UP_REGION": uint64(wire.UpRegion), "QUERN_R_CHUNK_TAG": uint64(wire.ChunkTag), "QUERN_R_CHUNK_PLACE": uint64(wire.ChunkPlace),
			"QUERN_R_CHUNK_BUSY": uint64(wire.ChunkBusy), "QUERN_R_STORED": uint64(wire.Stored), "QUERN_R_STORED_BEFORE": uint64(wire.StoredBefore),
			"QUERN_R_PASSED_ON": uint64(wire.PassedOn), "QUERN_R_CHAIN_ANSWERED": uint64(wire.ChainAnswered), "QUERN_R_UP_HOP": uint64(wire.UpHop),
			"QUERN_R_COLLECTED": uint64(wire.Collected), "QUERN_R_COLLECTED_UP": uint64(wire.CollectedUp), "QUERN_R_PUMPED": uint64(wire.Pumped),
			"QUERN_R_UP_GROUP": uint64(wire.UpGroup), "QUERN_R_PART_TAG": uint64(wire.PartTag), "QUERN_R_PART_STRAY": uint64(wire.PartStray),
			"QUERN_R_PART_DIFFERS": uint64(wire.PartDiffers), "QUERN_R_PART_BEFORE": uint64(wire.PartBefore), "QUERN_R_ADDED": uint64(wire.Added),
			"QUERN_R_REDUCED": uint64(wire.BlockReduced), "QUERN_R_RESULT_AGAIN": uint64(wire.ResultAgain), "QUERN_R_RESULT_STORED": uint64(wire.ResultStored),
			"QUERN_R_RESULT_BEFORE": uint64(wire.ResultBefore), "QUERN_R_RESULT_PASSED": uint64(wire.ResultPassed),
			"QUERN_R_COUNT": uint64(wire.Reasons),
		},
	} {
		var c *btf.Enum
		if err := types.TypeByName(enum, &c); err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, v := range c.Values {
			got[v.Name] = v.Value
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v in C, %v in Go", enum, got, want)
		}
	}
}
