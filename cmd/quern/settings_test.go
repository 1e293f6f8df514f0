// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"

	"github.com/quernmr/quern/bpf"
	"github.com/quernmr/quern/jobs"
	"github.com/quernmr/quern/shuffle/broadcast"
)

func TestShuffleSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		config string
		env    []string
		args   []string
		mode   string
		xdp    string
	}{
		{"default", "", nil, nil, "auto", "native"},
		{"file", "shuffle: user\nxdp-mode: generic\n", nil, nil, "user", "generic"},
		{"environment over file", "shuffle: user\n", []string{"QUERN_SHUFFLE=kernel", "QUERN_XDP_MODE=generic"}, nil, "kernel", "generic"},
		{"flag over environment", "shuffle: user\n", []string{"QUERN_SHUFFLE=kernel"}, []string{"--shuffle=auto"}, "auto", "native"},
		{"beside those of jobs", "memory: 4GiB\nshuffle: user\nwordcount: {lower: true}\n", []string{"QUERN_MIN_COUNT=2"}, nil, "user", "native"},
		// What Kubernetes sets for a service named quern is no port of ours.
		{"cluster variables", "port: 7000\n", []string{"QUERN_PORT=tcp://10.0.0.1:80", "QUERN_SERVICE_HOST=10.0.0.1"}, nil, "auto", "native"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"doctor", "--json", "--run-dir", t.TempDir()}, c.args...)
			if c.config != "" {
				args = append(args, "--config", file(t, "c.yaml", c.config))
			}
			r := doctorJSON(t, run(t, call{args: args, env: c.env}))
			if r.Mode != c.mode || r.XDPMode != c.xdp || (c.mode == "kernel") != (r.Folds == "") {
				t.Errorf("%+v", r.Report)
			}
		})
	}
}

func TestWrongShuffleSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		config string
		env    string
		args   []string
		says   []string
	}{
		{"mode", "", "", []string{"--shuffle=kernal"}, []string{"--shuffle", `"kernal"`, "auto, kernel, user"}},
		{"mode in a variable", "", "QUERN_SHUFFLE=kernal", nil, []string{"--shuffle", `"kernal"`}},
		{"XDP mode", "", "", []string{"--xdp-mode=auto"}, []string{"--xdp-mode", "native, generic"}},
		{"port", "", "", []string{"--port=0"}, []string{"--port 0"}},
		{"port that is none", "", "QUERN_PORT=http", nil, []string{"QUERN_PORT", `"http"`, "no whole number"}},
		{"memory", "", "", []string{"--table-memory=0"}, []string{"--table-memory", `"0"`}},
		{"memory without a number", "", "", []string{"--table-memory=much"}, []string{"--table-memory", `"much"`, "512MiB"}},
		{"broadcasts' memory", "", "", []string{"--broadcast-memory=much"}, []string{"--broadcast-memory", `"much"`, "512MiB"}},
		{"little for broadcasts", "broadcast-memory: 15MiB\n", "", nil, []string{"--broadcast-memory 15MiB", "at least 16 MiB"}},
		{"little for all-reduces", "", "QUERN_REDUCE_MEMORY=1MiB", nil, []string{"--reduce-memory 1MiB", "at least 16 MiB"}},
		{"no interface", "", "", []string{"--interface="}, []string{"--interface"}},
		{"flag", "", "", []string{"--suffle=user"}, []string{"did you mean --shuffle?"}},
		{"variable", "", "QUERN_SHUFLE=user", nil, []string{"QUERN_SHUFLE", "did you mean QUERN_SHUFFLE?"}},
		{"key", "\nxdp-mod: generic\n", "", nil, []string{"c.yaml:2:", "did you mean xdp-mode?"}},
		{"in a job's section", "wordcount: {shuffle: user}\n", "", nil, []string{"c.yaml:1:", "wordcount.shuffle"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"doctor"}, c.args...)
			if c.config != "" {
				args = append(args, "--config", file(t, "c.yaml", c.config))
			}
			var env []string
			if c.env != "" {
				env = []string{c.env}
			}
			run(t, call{args: args, env: env}).failure(t, exitUsage, c.says...)
		})
	}
}

// Errors of bpf tell users to change settings; there must be a flag for each. And no
// job may have an option of the same name, since both share variables.
func TestSettingNames(t *testing.T) {
	t.Parallel()
	ours := keysOf(newShuffleSettings())
	for _, name := range []string{bpf.ReplaceSetting, bpf.TableMemorySetting, bpf.XDPModeSetting, bpf.InterfaceSetting} {
		if !slices.Contains(ours, name) {
			t.Errorf("there is no flag --%s", name)
		}
	}
	for _, d := range jobs.All() {
		for _, key := range append(keysOf(d.New()), generalKeys()...) {
			if slices.Contains(ours, key) {
				t.Errorf("%s has an option %s, too", d.Name, key)
			}
		}
	}
	help := quern(t, "doctor", "--help").success(t)
	for _, name := range ours {
		if !strings.Contains(help, "--"+name) {
			t.Errorf("help of doctor does not show --%s", name)
		}
	}
}

// TestShares: what broadcasts and all-reduces may take of the host's memory is set as all settings are, and shown.
func TestShares(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, config      string
		env, args         []string
		broadcast, reduce string
	}{
		{"default", "", nil, nil, "up to " + humanize.IBytes(uint64(broadcast.DefaultMemory())), "up to 256 MiB"},
		{"file", "broadcast-memory: 16MiB\nreduce-memory: 64MiB\n", nil, nil, "up to 16 MiB", "up to 64 MiB"},
		{"environment over file", "broadcast-memory: 16MiB\n", []string{"QUERN_BROADCAST_MEMORY=32MiB"}, nil, "up to 32 MiB", "up to 256 MiB"},
		{"flag over environment", "", []string{"QUERN_REDUCE_MEMORY=64MiB"}, []string{"--reduce-memory=48MiB"}, "", "up to 48 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"doctor", "--json", "--run-dir", t.TempDir()}, c.args...)
			if c.config != "" {
				args = append(args, "--config", file(t, "c.yaml", c.config))
			}
			r := doctorJSON(t, run(t, call{args: args, env: c.env}))
			for name, want := range map[string]string{"broadcast memory": c.broadcast, "all-reduce memory": c.reduce} {
				i := slices.IndexFunc(r.Checks, func(c bpf.Check) bool { return c.Name == name })
				if i < 0 || !strings.HasPrefix(r.Checks[i].Found, want) || r.Checks[i].State != bpf.OK {
					t.Errorf("%s, want %s: %+v", name, want, r.Checks)
				}
			}
		})
	}
	for _, c := range (shares{1 << 40, 1 << 30}).checks(1 << 40) {
		if c.State != bpf.OK || c.Fix != "" {
			t.Errorf("%+v", c)
		}
	}
	if list := (shares{1 << 40, 1<<40 + 1}).checks(1 << 40); list[0].State != bpf.OK || list[1].State != bpf.Warning || !strings.Contains(list[1].Fix, "--reduce-memory") {
		t.Errorf("%+v", list)
	}
}

// Settings of the host disturb no job.
func TestShuffleSettingsBesideJobs(t *testing.T) {
	t.Parallel()
	config := file(t, "c.yaml", "shuffle: kernel\ninterface: eth7\nport: 7000\nxdp-mode: generic\nxdp-replace: true\ntable-memory: 1GiB\nbroadcast-memory: 1GiB\nreduce-memory: 1GiB\n")
	args := []string{"wordcount", file(t, "in", words), "--config", config}
	if got := run(t, call{args: args, env: []string{"QUERN_SHUFFLE=user"}}).success(t); got != "a\t3\nb\t2\nc\t1\n" {
		t.Errorf("got %q", got)
	}
	quern(t, "wordcount", "--shuffle=user").failure(t, exitUsage, "--shuffle")
}
