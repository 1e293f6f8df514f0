// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func nhSteps(m *byte, key *uint64, n int) uint64
//
// Four words at a time: sums of 32 bits, then the product of the low and the
// high half of each word.
TEXT ·nhSteps(SB), NOSPLIT, $0-32
	MOVQ m+0(FP), SI
	MOVQ key+8(FP), DI
	MOVQ n+16(FP), CX
	VPXOR Y0, Y0, Y0
	VPXOR Y4, Y4, Y4
	TESTQ $1, CX
	JZ    pairs
	VMOVDQU (SI), Y1
	VPADDD  (DI), Y1, Y1
	VPSRLQ  $32, Y1, Y2
	VPMULUDQ Y2, Y1, Y0
	ADDQ $32, SI
	ADDQ $32, DI

pairs:
	SHRQ $1, CX
	JZ   done

loop:
	VMOVDQU (SI), Y1
	VMOVDQU 32(SI), Y5
	VPADDD  (DI), Y1, Y1
	VPADDD  32(DI), Y5, Y5
	VPSRLQ  $32, Y1, Y2
	VPSRLQ  $32, Y5, Y6
	VPMULUDQ Y2, Y1, Y1
	VPMULUDQ Y6, Y5, Y5
	VPADDQ  Y1, Y0, Y0
	VPADDQ  Y5, Y4, Y4
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ CX
	JNZ  loop

done:
	VPADDQ Y4, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPADDQ X1, X0, X0
	VPSHUFD $0x4e, X0, X1
	VPADDQ X1, X0, X0
	VMOVQ X0, AX
	VZEROUPPER
	MOVQ AX, ret+24(FP)
	RET
