// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"runtime"
	"runtime/pprof"

	"github.com/spf13/pflag"
)

// profilingFlag holds the hidden flags that write profiles of quern itself.
type profilingFlag struct {
	cpu, memory string
	cpuFile     *os.File
}

func (p *profilingFlag) add(flags *pflag.FlagSet) {
	flags.StringVar(&p.cpu, "cpuprofile", "", "write a CPU profile to that file")
	flags.StringVar(&p.memory, "memprofile", "", "write a profile of all allocations to that file")
	for _, name := range []string{"cpuprofile", "memprofile"} {
		flags.Lookup(name).Hidden = true
	}
}

func (p *profilingFlag) start() error {
	if p.memory != "" {
		runtime.MemProfileRate = 64 << 10
	}
	if p.cpu == "" {
		return nil
	}
	file, err := os.Create(p.cpu)
	if err != nil {
		return &usageError{err: err}
	}
	p.cpuFile = file
	return pprof.StartCPUProfile(file)
}

// stop writes what start began; it does nothing if start did not.
func (p *profilingFlag) stop() error {
	var err error
	if p.cpuFile != nil {
		pprof.StopCPUProfile()
		err = p.cpuFile.Close()
		p.cpuFile = nil
	}
	if p.memory != "" {
		file, createErr := os.Create(p.memory)
		if createErr != nil {
			return errors.Join(err, createErr)
		}
		runtime.GC()
		err = errors.Join(err, pprof.Lookup("allocs").WriteTo(file, 0), file.Close())
	}
	return err
}
