// SPDX-License-Identifier: Apache-2.0

// Command gotest runs go test, prints what go test prints, and then which tests
// were skipped and why:
//
//	go run ./internal/cmd/gotest [--expected FILE] [--strict] [--report FILE] -- ARGUMENTS OF GO TEST
//
// FILE of --expected lists skips that are meant, as regular expressions. With --strict,
// which is on where the environment variable CI is set, any other skip is a failure:
// there, everything is to be installed. --report adds the list of skips to a file too.
package main
