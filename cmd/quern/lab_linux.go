// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// labSignals returns the signals that are handed on to a lab's command. Those
// that the caller ignores (nohup) stay ignored. A terminal sends its own to the
// command, too, so they are not handed on.
func labSignals() (<-chan os.Signal, func()) {
	signals := make(chan os.Signal, 8)
	wanted := []os.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2}
	keys := []os.Signal{unix.SIGINT, unix.SIGQUIT}
	atTerminal := inForeground()
	unread := make(chan os.Signal, 1) // keeps us alive
	for _, s := range append(wanted, keys...) {
		switch {
		case signal.Ignored(s):
		case atTerminal && (s == unix.SIGINT || s == unix.SIGQUIT):
			signal.Notify(unread, s)
		default:
			signal.Notify(signals, s)
		}
	}
	return signals, func() {
		signal.Stop(signals)
		signal.Stop(unread)
	}
}

// inForeground says whether what is typed at a terminal goes to this process.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// codeOfState returns a process's exit code as shells do.
func codeOfState(s *os.ProcessState) int {
	if status, ok := s.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return s.ExitCode()
}
