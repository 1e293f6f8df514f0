// SPDX-License-Identifier: Apache-2.0

//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package bpf

// objects are what the files of c/ were made into, by their names.
var objects = map[string]object{
	"dispatch":  {loadCDispatch, _CDispatchBytes},
	"fold":      {loadCFold, _CFoldBytes},
	"ack":       {loadCAck, _CAckBytes},
	"absorb":    {loadCAbsorb, _CAbsorbBytes},
	"answer_tc": {loadCAnswerTc, _CAnswerTcBytes},
	"chunk":     {loadCChunk, _CChunkBytes},
	"collect":   {loadCCollect, _CCollectBytes},
	"pump":      {loadCPump, _CPumpBytes},
	"clone":     {loadCClone, _CCloneBytes},
	"reduce":    {loadCReduce, _CReduceBytes},
	"complete":  {loadCComplete, _CCompleteBytes},
	"reduced":   {loadCReduced, _CReducedBytes},
	"pass":      {loadCPass, _CPassBytes},
	"send":      {loadCSend, _CSendBytes},
}
