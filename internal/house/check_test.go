// SPDX-License-Identifier: Apache-2.0

package house

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const spdx = "// SPDX-License-Identifier: Apache-2.0\n\n"

const dual = "/* SPDX-License-Identifier: GPL-2.0-only OR BSD-3-Clause */\n"

// module makes a module in memory that has nothing wrong with it, and adds or
// replaces files. An empty text removes the file.
func module(files map[string]string) fstest.MapFS {
	m := fstest.MapFS{}
	set := func(name, text string) { m[name] = &fstest.MapFile{Data: []byte(text)} }
	set("shuffle/doc.go", spdx+"// Package shuffle is good.\npackage shuffle\n")
	set("mapreduce/doc.go", spdx+"// Package mapreduce is good.\npackage mapreduce\n")
	set("mapreduce/run.go", spdx+"package mapreduce\n\nimport _ \"github.com/quernmr/quern/shuffle/fold\"\n")
	set("cmd/quern/main.go", spdx+"package main\n\nimport _ \"github.com/quernmr/quern/jobs\"\n")
	for name, text := range files {
		if text == "" {
			delete(m, name)
			continue
		}
		set(name, text)
	}
	return m
}

func importing(pkg string, paths ...string) string {
	var b strings.Builder
	b.WriteString(spdx + "package " + pkg + "\n\n")
	for _, p := range paths {
		b.WriteString("import _ \"" + p + "\"\n")
	}
	return b.String()
}

func doc(pkg string) string {
	return spdx + "// Package " + pkg + " is here.\npackage " + pkg + "\n"
}

func TestCheck(t *testing.T) {
	const our = Module + "/"
	tests := []struct {
		name  string
		files map[string]string
		want  []string // every problem has to contain its string, in order
	}{
		{name: "nothing wrong"},
		{
			name:  "shuffle must not know mapreduce",
			files: map[string]string{"shuffle/fold/doc.go": doc("fold"), "shuffle/fold/a.go": importing("fold", our+"mapreduce", our+"shuffle/spill")},
			want:  []string{"shuffle/fold/a.go:5: shuffle imports " + our + "mapreduce: it may import of ours only shuffle"},
		},
		{
			name:  "mapreduce must not know jobs",
			files: map[string]string{"mapreduce/a.go": importing("mapreduce", "strings", our+"jobs")},
			want:  []string{"mapreduce/a.go:6: mapreduce imports"},
		},
		{
			name:  "a test keeps to the rules too",
			files: map[string]string{"mapreduce/a_test.go": importing("mapreduce_test", our+"jobs")},
			want:  []string{"mapreduce/a_test.go:5: mapreduce imports"},
		},
		{
			name:  "a test may use internal, other code may not",
			files: map[string]string{"mapreduce/a_test.go": importing("mapreduce_test", our+"internal/netlab"), "mapreduce/b.go": importing("mapreduce", our+"internal/netlab")},
			want:  []string{"mapreduce/b.go:5: mapreduce imports"},
		},
		{
			name: "worker may use three rooms, not the master",
			files: map[string]string{
				"worker/doc.go": doc("worker"),
				"worker/a.go":   importing("worker", our+"mapreduce", our+"shuffle/fold", our+"jobs", our+"master"),
			},
			want: []string{"worker/a.go:8: worker imports " + our + "master"},
		},
		{
			name:  "master may not use shuffle",
			files: map[string]string{"master/doc.go": doc("master"), "master/a.go": importing("master", our+"mapreduce", our+"jobs", our+"shuffle")},
			want:  []string{"master/a.go:7:"},
		},
		{
			name:  "examples may use mapreduce alone",
			files: map[string]string{"examples/wordcount/main.go": importing("main", our+"mapreduce/input", our+"shuffle/fold", our+"jobs")},
			want:  []string{"examples/wordcount/main.go:6:", "examples/wordcount/main.go:7:"},
		},
		{
			name:  "nobody imports a command",
			files: map[string]string{"internal/x/doc.go": doc("x"), "internal/x/a.go": importing("x", our+"cmd/quern")},
			want:  []string{"nobody may import a command"},
		},
		{
			name:  "an import path that only looks like ours",
			files: map[string]string{"mapreduce/a.go": importing("mapreduce", Module+"-extras/jobs")},
		},
		{
			name:  "only bpf imports cilium/ebpf",
			files: map[string]string{"bpf/doc.go": doc("bpf"), "bpf/a.go": importing("bpf", "github.com/cilium/ebpf/link"), "cmd/quern/a.go": importing("main", "github.com/cilium/ebpf")},
			want:  []string{"cmd/quern/a.go:5: cmd imports github.com/cilium/ebpf, which only bpf may"},
		},
		{
			name:  "other systems' files count",
			files: map[string]string{"shuffle/a_plan9.go": importing("shuffle", our+"jobs")},
			want:  []string{"shuffle/a_plan9.go:5:"},
		},
		{
			name:  "a new room",
			files: map[string]string{"attic/doc.go": doc("attic"), "attic/a.go": importing("attic", our+"shuffle")},
			want:  []string{`attic: the floor plan has no room "attic"`},
		},
		{
			name:  "a package at the root",
			files: map[string]string{"main.go": importing("main")},
			want:  []string{`.: the floor plan has no room "."`},
		},
		{
			name:  "no package comment",
			files: map[string]string{"shuffle/doc.go": spdx + "package shuffle\n"},
			want:  []string{"shuffle: package shuffle has no package comment"},
		},
		{
			name:  "package comment elsewhere than in doc.go",
			files: map[string]string{"shuffle/doc.go": "", "shuffle/a.go": doc("shuffle")},
			want:  []string{"shuffle: package shuffle has no package comment"},
		},
		{
			name:  "the licence line is no package comment",
			files: map[string]string{"shuffle/doc.go": "// SPDX-License-Identifier: Apache-2.0\npackage shuffle\n"},
			want:  []string{"shuffle: package shuffle has no package comment"},
		},
		{
			name:  "no licence",
			files: map[string]string{"cmd/quern/a.go": "package main\n", "bpf/fold.h": "#pragma once\n", "bpf/fold.bpf.c": dual, "bpf/doc.go": doc("bpf"), "bpf/fold_bpfel.go": "// Code generated by bpf2go; DO NOT EDIT.\n\npackage bpf\n"},
			want:  []string{"bpf/fold.h: has no", "cmd/quern/a.go: has no"},
		},
		{
			name: "the wrong licence",
			files: map[string]string{
				"bpf/c/fold.h": "// SPDX-License-Identifier: Apache-2.0\n", "bpf/c/fold.bpf.c": "/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */\n",
				"bpf/generate.sh": "#!/bin/sh\n" + dual, "bpf/doc.go": doc("bpf"), "bpf/a.go": dual + "\npackage bpf\n",
			},
			want: []string{"bpf/a.go: has no", "bpf/c/fold.bpf.c: has no", "bpf/c/fold.h: has no", "bpf/generate.sh: has no"},
		},
		{
			name: "the lab may use the faults and shuffle, not jobs; nobody else bpf",
			files: map[string]string{
				"bpf/faults/doc.go": doc("faults"), "bpf/faults/a.go": importing("faults", "github.com/cilium/ebpf", our+"shuffle/wire"),
				"internal/netlab/doc.go": doc("netlab"), "internal/netlab/a.go": importing("netlab", our+"bpf/faults", our+"shuffle", our+"jobs", "github.com/cilium/ebpf"),
				"shuffle/a.go": importing("shuffle", our+"bpf/faults"),
			},
			want: []string{
				"internal/netlab/a.go:7: internal imports " + our + "jobs", "internal/netlab/a.go:8: internal imports github.com/cilium/ebpf",
				"shuffle/a.go:5: shuffle imports " + our + "bpf/faults",
			},
		},
		{
			name:  "a name that says nothing",
			files: map[string]string{"internal/util/doc.go": doc("util"), "internal/helpers/doc.go": doc("help")},
			want:  []string{"internal/helpers: package help", "internal/util: package util"},
		},
		{
			name: "unfinished work",
			files: map[string]string{
				"shuffle/a.go":      spdx + "package shuffle\n\n// TODO: more\n\n/* first\n FIXME: this\n*/\n\nfunc f() { panic(\"TODO\") }\n",
				"shuffle/a_test.go": spdx + "package shuffle\n\n// TODO: allowed here\n",
				"shuffle/b.go":      spdx + "package shuffle\n\nvar TODOs = \"aTODOb\" // todo lists\n",
				"bpf/c/fold.h":      dual + "\n/* one\n * TODO: two */\n",
			},
			want: []string{"bpf/c/fold.h:4: leaves a TODO", "shuffle/a.go:5: leaves a TODO", "shuffle/a.go:8: leaves a FIXME", "shuffle/a.go:11: leaves a TODO"},
		},
		{
			name:  "a file that does not parse",
			files: map[string]string{"shuffle/a.go": spdx + "package shuffle\n\nfunc {\n"},
			want:  []string{"shuffle/a.go: does not parse"},
		},
		{
			name: "folders that are no source",
			files: map[string]string{
				".bench/x.go": "package x\n", "shuffle/testdata/x.go": "package x\n", "_old/x.go": "package x\n", "bin/x.go": "package x\n",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Check(module(tt.files))
			if err != nil {
				t.Fatal(err)
			}
			ok := slices.EqualFunc(got, tt.want, func(p Problem, want string) bool { return strings.Contains(p.String(), want) })
			if !ok {
				t.Errorf("problems:\n%v\nwant:\n%s", lines(got), strings.Join(tt.want, "\n"))
			}
		})
	}
}

func lines(problems []Problem) string {
	var b strings.Builder
	for _, p := range problems {
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}
