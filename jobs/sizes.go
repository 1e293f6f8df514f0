// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// parseSize reads a number of bytes such as 512MiB, 64k or 1000; "" is 0. The
// error names the option.
func parseSize(option, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return 0, fmt.Errorf("--%s %q: give bytes such as 1000000, 64KiB, 512MiB or 2GB", option, text)
	}
	if n == 0 {
		return 0, fmt.Errorf("--%s %q: must be more than 0", option, text)
	}
	return int64(n), nil
}

// parseDelimiter reads a record delimiter with the escapes of Go strings (\n, \t,
// \x1e, \u2028) and \0.
func parseDelimiter(text string) ([]byte, error) {
	if text == "" {
		return nil, nil
	}
	quoted := &strings.Builder{}
	quoted.WriteByte('"')
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && i+1 < len(text):
			i++
			if text[i] == '0' && (i+1 == len(text) || text[i+1] < '0' || text[i+1] > '7') {
				quoted.WriteString(`\x00`)
				continue
			}
			quoted.WriteByte(c)
			quoted.WriteByte(text[i])
		case c == '"' || c == '\n' || c < ' ' || c >= 0x7f:
			fmt.Fprintf(quoted, `\x%02x`, c)
		default:
			quoted.WriteByte(c)
		}
	}
	quoted.WriteByte('"')
	delimiter, err := strconv.Unquote(quoted.String())
	if err != nil {
		return nil, fmt.Errorf("--delimiter %q: write it as in a Go string, with escapes such as \\n, \\t, \\0, \\x1e", text)
	}
	return []byte(delimiter), nil
}
