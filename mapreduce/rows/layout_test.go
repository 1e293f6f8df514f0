// SPDX-License-Identifier: Apache-2.0

package rows_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/quernmr/quern/mapreduce/input"
	"github.com/quernmr/quern/mapreduce/rows"
)

func ExampleFormat_Prepare() {
	format := rows.Format{Kind: rows.CSV, Comma: ';', Header: true}
	layout, err := format.Prepare([]string{"temperature", "station"}, func(*input.File) ([]byte, error) {
		return []byte("station;temperature\n"), nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	parser := layout.NewParser()
	block := input.Block{
		Data: []byte("Hamburg;12.0\n\"St. John's; Antigua\";27.25\nCracow;warm\n"),
		File: &input.File{Path: "measurements.csv"}, Offset: 20, Line: 2,
	}
	if err := parser.Reset(block); err != nil {
		fmt.Println(err)
		return
	}
	for parser.Next() {
		mantissa, scale, err := rows.ParseDecimal(parser.Field(0))
		if err != nil {
			fmt.Println(parser.FieldError(0, err))
			return
		}
		fmt.Printf("%s: %d x 10^-%d\n", parser.Field(1), mantissa, scale)
	}
	if err := parser.Err(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// Hamburg: 120 x 10^-1
	// St. John's; Antigua: 2725 x 10^-2
	// measurements.csv:4: field "temperature": "warm" is not a number
}

func TestParsersShareALayout(t *testing.T) {
	content := "k,v\n" + strings.Repeat("a,1\n", 100)
	format := rows.Format{Kind: rows.CSV, Header: true}
	layout, err := format.Prepare([]string{"v"}, func(*input.File) ([]byte, error) { return []byte(content), nil })
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			p := layout.NewParser()
			n := 0
			for f := range 50 {
				file := &input.File{Path: fmt.Sprint(f % 7), Size: int64(len(content))}
				from := 4 * ((f + g) % 2)
				if err := p.Reset(input.Block{Data: []byte(content[from:]), File: file, Offset: int64(from)}); err != nil {
					t.Error(err)
				}
				for p.Next() {
					n++
				}
			}
			if n != 5000 || p.Err() != nil {
				t.Errorf("%d rows, %v", n, p.Err())
			}
		})
	}
	wg.Wait()
}
