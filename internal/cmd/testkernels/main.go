// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/quernmr/quern/internal/testsummary"
	"github.com/quernmr/quern/internal/vmtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, terminate)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "testkernels:", err)
		os.Exit(1)
	}
}

type settings struct {
	kernels  []string
	run      string
	skip     string
	logs     string
	expected testsummary.Expected
	strict   bool
	goTool   string
	timeout  time.Duration
	machine  vmtest.Machine
}

func run(ctx context.Context, args []string, out io.Writer) error {
	s := settings{}
	flags := flag.NewFlagSet("testkernels", flag.ContinueOnError)
	flags.Func("kernel", "folder of an unpacked kernel package; may be repeated", func(v string) error {
		s.kernels = append(s.kernels, v)
		return nil
	})
	flags.StringVar(&s.run, "run", "", "run these tests, as of go test")
	flags.StringVar(&s.skip, "skip", "", "leave out these tests, as of go test")
	flags.StringVar(&s.logs, "logs", ".cache/kernels/logs", "folder for logs")
	flags.StringVar(&s.goTool, "go", "go", "the go command")
	flags.BoolVar(&s.strict, "strict", os.Getenv("CI") != "", "fail if a test is skipped that is not listed")
	flags.DurationVar(&s.timeout, "timeout", time.Hour, "limit per package and kernel; 15 times that if QUERN_LONG is set")
	flags.IntVar(&s.machine.Memory, "memory", 0, "MiB per machine; 0: 1536")
	flags.IntVar(&s.machine.CPUs, "cpus", 0, "per machine; 0: 2")
	expected := flags.String("expected", "", "file with a list of skips that are meant")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if len(s.kernels) == 0 || flags.NArg() == 0 {
		return errors.New("name a --kernel and a package")
	}
	if *expected != "" {
		text, err := os.ReadFile(*expected)
		if err != nil {
			return err
		}
		if s.expected, err = testsummary.ParseExpected(string(text)); err != nil {
			return fmt.Errorf("%s: %w", *expected, err)
		}
	}
	work, err := os.MkdirTemp("", "quern-testkernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	initBinary, tests, err := s.build(ctx, work, flags.Args())
	if err != nil {
		return err
	}
	s.machine.Timeout = time.Minute
	for _, t := range tests {
		s.machine.Timeout += t.Timeout
	}
	return s.bootAll(ctx, work, initBinary, tests, out)
}

// build compiles the init and the packages' tests.
func (s *settings) build(ctx context.Context, work string, packages []string) (string, []vmtest.TestBinary, error) {
	env := append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	goCommand := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, s.goTool, args...)
		cmd.Env, cmd.Stderr = env, os.Stderr
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", cmd, err)
		}
		return text, nil
	}
	initBinary := filepath.Join(work, "init")
	if _, err := goCommand("build", "-ldflags", "-s -w", "-o", initBinary, "github.com/quernmr/quern/internal/vmtest/init"); err != nil {
		return "", nil, err
	}
	list, err := goCommand(append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}, packages...)...)
	if err != nil {
		return "", nil, err
	}
	// Emulation is ten times slower and more, so a long run takes its time.
	long := os.Getenv("QUERN_LONG")
	timeout := s.timeout
	if long != "" {
		timeout *= 15
	}
	var tests []vmtest.TestBinary
	for d := json.NewDecoder(bytes.NewReader(list)); ; {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return "", nil, fmt.Errorf("go list: %w", err)
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		binary := filepath.Join(work, fmt.Sprintf("%d.test", len(tests)))
		if _, err := goCommand("test", "-c", "-ldflags", "-s -w", "-o", binary, p.ImportPath); err != nil {
			return "", nil, err
		}
		tests = append(tests, vmtest.TestBinary{
			Name: p.ImportPath, Path: binary, Source: p.Dir, Run: s.run, Skip: s.skip, Timeout: timeout,
			Env: []string{"QUERN_LONG=" + long}, Long: long != "",
		})
	}
	if len(tests) == 0 {
		return "", nil, fmt.Errorf("no tests in %s", strings.Join(packages, " "))
	}
	return initBinary, tests, nil
}

// one is what came out of one kernel.
type one struct {
	kernel  vmtest.Kernel
	result  vmtest.Result
	summary *testsummary.Summary
	text    bytes.Buffer // what failed
	took    time.Duration
	err     error
}

func (s *settings) bootAll(ctx context.Context, work, initBinary string, tests []vmtest.TestBinary, out io.Writer) error {
	// All at once if memory allows, else one after the other.
	atOnce := len(s.kernels)
	memory := s.machine.Memory
	if memory == 0 {
		memory = 1536
	}
	if have, ok := availableMemory(); ok && have < int64(atOnce*memory+512)<<20 {
		atOnce = 1
	}
	room := make(chan bool, atOnce)
	all := make([]*one, len(s.kernels))
	var wg sync.WaitGroup
	for i, dir := range s.kernels {
		o := &one{}
		all[i] = o
		wg.Go(func() {
			room <- true
			defer func() { <-room }()
			o.err = s.boot(ctx, work, initBinary, dir, tests, o)
		})
	}
	wg.Wait()
	var bad []error
	for i, o := range all {
		if o.summary == nil {
			bad = append(bad, fmt.Errorf("%s: %w", s.kernels[i], o.err))
			continue
		}
		fmt.Fprintf(out, "kernel %s: %d tests passed, %d failed, %d skipped, %.0f s\n",
			o.kernel.Release, o.summary.Passed, len(o.summary.Failed), len(o.summary.Skipped), o.took.Seconds())
		for _, n := range o.result.Notes {
			if !strings.HasPrefix(n, "kernel ") {
				fmt.Fprintln(out, "  note:", n)
			}
		}
		shorten(out, o.text.String(), filepath.Join(s.logs, o.kernel.Release))
		for _, f := range slices.Concat(o.summary.Failed, o.summary.Broken) {
			fmt.Fprintln(out, "  FAILED:", f)
		}
		unexpected := s.expected.Unexpected(o.summary.Skipped)
		for _, skip := range o.summary.Skipped {
			word := "  skipped, as is to be:"
			if slices.Contains(unexpected, skip) {
				word = "  SKIPPED:"
			}
			fmt.Fprintln(out, word, skip)
		}
		if o.err == nil && s.strict && len(unexpected) > 0 {
			o.err = fmt.Errorf("%d tests were skipped that the list of expected skips does not have", len(unexpected))
		}
		if o.err == nil && o.summary.Passed == 0 {
			o.err = errors.New("no test passed: does --run name any?")
		}
		if o.err != nil {
			bad = append(bad, fmt.Errorf("kernel %s: %w", o.kernel.Release, o.err))
		}
	}
	verifierTable(out, all)
	return errors.Join(bad...)
}

// shorten prints the beginning and the end of a long text: a rejected program's
// log has thousands of lines.
func shorten(out io.Writer, text, logs string) {
	const most = 60
	lines := strings.SplitAfter(text, "\n")
	if n := len(lines); n > 2*most {
		left := fmt.Sprintf("... %d lines more in %s\n", n-2*most, logs)
		lines = slices.Concat(lines[:most], []string{left}, lines[n-most:])
	}
	fmt.Fprint(out, strings.Join(lines, ""))
}

func (s *settings) boot(ctx context.Context, work, initBinary, dir string, tests []vmtest.TestBinary, o *one) error {
	k, err := vmtest.FindKernel(dir)
	if err != nil {
		return err
	}
	logs := filepath.Join(s.logs, k.Release)
	if err := os.MkdirAll(logs, 0o777); err != nil {
		return err
	}
	image := filepath.Join(work, k.Release+".cpio")
	f, err := os.Create(image)
	if err != nil {
		return err
	}
	if err := errors.Join(vmtest.WriteImage(f, k, initBinary, tests), f.Close()); err != nil {
		return err
	}
	began := time.Now()
	result, bootErr := vmtest.Boot(ctx, k, image, s.machine, logs)
	for again := 0; bootErr != nil && !result.Began() && ctx.Err() == nil && again < 2; again++ {
		fmt.Fprintf(&o.text, "booting again, since it came to nothing: %v\n", bootErr)
		result, bootErr = vmtest.Boot(ctx, k, image, s.machine, logs)
	}
	o.kernel, o.took, o.result = k, time.Since(began), result
	summary := &testsummary.Reader{Out: &o.text}
	for _, outcome := range result.Outcomes {
		args := []string{"tool", "test2json", "-p", outcome.Name}
		cmd := exec.CommandContext(ctx, s.goTool, args...)
		cmd.Stdin, cmd.Stderr = strings.NewReader(outcome.Output), os.Stderr
		events, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", cmd, err)
		}
		if err := summary.Read(bytes.NewReader(events)); err != nil {
			return err
		}
	}
	o.summary = summary.Summary()
	if bootErr != nil {
		return fmt.Errorf("%w\nlogs are in %s", bootErr, logs)
	}
	if err := result.Check(tests); err != nil {
		return fmt.Errorf("%w; logs are in %s", err, logs)
	}
	if !o.summary.OK() {
		return fmt.Errorf("%v and %v failed, though the exit code was 0; logs are in %s", o.summary.Failed, o.summary.Broken, logs)
	}
	return nil
}

// verifierTable prints the verified instructions, a column per kernel.
func verifierTable(out io.Writer, all []*one) {
	names := map[string]bool{}
	counts := make([]map[string]int, len(all))
	for i, o := range all {
		counts[i] = o.result.Verified()
		for name := range counts[i] {
			names[name] = true
		}
	}
	if len(names) == 0 {
		return
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "verified instructions\t")
	for _, o := range all {
		fmt.Fprintf(w, "%s\t", o.kernel.Release)
	}
	fmt.Fprintln(w)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(w, "%s\t", name)
		for _, c := range counts {
			if n, ok := c[name]; ok {
				fmt.Fprintf(w, "%d\t", n)
			} else {
				fmt.Fprint(w, "-\t")
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}
