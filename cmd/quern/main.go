// SPDX-License-Identifier: Apache-2.0

// Command quern counts, aggregates, sorts and joins files on all cores of one
// machine. `quern help` lists its commands, docs/cli.md describes them.
package main

import (
	"os"
)

func main() {
	a := &app{args: os.Args[1:], stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(a.run())
}
