// SPDX-License-Identifier: Apache-2.0

package testsummary

import (
	"reflect"
	"strings"
	"testing"
)

// events are as go test -json writes them, without times.
const events = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:3: chatter\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0}
{"Action":"run","Package":"m/a","Test":"TestBad"}
{"Action":"run","Package":"m/b","Test":"TestLater"}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"m/b","Test":"TestLater","Output":"=== RUN   TestLater\n"}
{"Action":"output","Package":"m/b","Test":"TestLater","Output":"    b_test.go:7: first words\n"}
{"Action":"output","Package":"m/b","Test":"TestLater","Output":"    b_test.go:9: needs mawk:\n"}
{"Action":"output","Package":"m/b","Test":"TestLater","Output":"        apt-get install mawk\n"}
{"Action":"output","Package":"m/b","Test":"TestLater","Output":"--- SKIP: TestLater (0.00s)\n"}
{"Action":"skip","Package":"m/b","Test":"TestLater","Elapsed":0}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"    a_test.go:9: got 1, want 2\n"}
{"Action":"output","Package":"m/a","Test":"TestBad","Output":"--- FAIL: TestBad (0.00s)\n"}
{"Action":"fail","Package":"m/a","Test":"TestBad","Elapsed":0}
{"Action":"run","Package":"m/b","Test":"TestLater/mute"}
{"Action":"output","Package":"m/b","Test":"TestLater/mute","Output":"=== RUN   TestLater/mute\n"}
{"Action":"skip","Package":"m/b","Test":"TestLater/mute","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"FAIL\n"}
{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t0.002s\n"}
{"Action":"fail","Package":"m/a","Elapsed":0.002}
{"Action":"output","Package":"m/b","Output":"PASS\n"}
{"Action":"output","Package":"m/b","Output":"ok  \tm/b\t0.002s\n"}
{"Action":"pass","Package":"m/b","Elapsed":0.002}
{"Action":"output","Package":"m/none","Output":"?   \tm/none\t[no test files]\n"}
{"Action":"skip","Package":"m/none","Elapsed":0}
{"ImportPath":"m/c [m/c.test]","Action":"build-output","Output":"c_test.go:5:6: undefined: x\n"}
{"ImportPath":"m/c [m/c.test]","Action":"build-fail"}
{"Action":"start","Package":"m/c"}
{"Action":"output","Package":"m/c","Output":"FAIL\tm/c [build failed]\n"}
{"Action":"fail","Package":"m/c","Elapsed":0,"FailedBuild":"m/c [m/c.test]"}
{"Action":"output","Package":"m/d","Output":"panic: in TestMain\n"}
{"Action":"output","Package":"m/d","Output":"FAIL\tm/d\t0.002s\n"}
{"Action":"fail","Package":"m/d","Elapsed":0.002}
go: a word of the go command itself
`

func TestRead(t *testing.T) {
	var out strings.Builder
	r := &Reader{Out: &out}
	if err := r.Read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	want := &Summary{
		Passed: 1,
		Failed: []string{"m/a TestBad"},
		Skipped: []Skip{
			{"m/b", "TestLater/mute", ""},
			{"m/b", "TestLater", "needs mawk:; apt-get install mawk"},
		},
		Broken: []string{"m/c", "m/c [m/c.test]", "m/d"},
	}
	if got := r.Summary(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if want := `=== RUN   TestBad
    a_test.go:9: got 1, want 2
--- FAIL: TestBad (0.00s)
FAIL	m/a	0.002s
FAIL
ok  	m/b	0.002s
?   	m/none	[no test files]
c_test.go:5:6: undefined: x
FAIL	m/c [build failed]
FAIL	m/d	0.002s
panic: in TestMain
go: a word of the go command itself
`; out.String() != want {
		t.Errorf("wrote\n%s\nwant\n%s", out.String(), want)
	}
	if r.Summary().OK() || !(&Summary{Passed: 1}).OK() {
		t.Error("OK is wrong")
	}
}

func TestVerbose(t *testing.T) {
	var out strings.Builder
	r := &Reader{Out: &out, Verbose: true}
	if err := r.Read(strings.NewReader(events)); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"chatter", "needs mawk", "got 1, want 2", "ok  \tm/b"} {
		if strings.Count(out.String(), line) != 1 {
			t.Errorf("%q is there %d times", line, strings.Count(out.String(), line))
		}
	}
}

func TestExpected(t *testing.T) {
	e, err := ParseExpected("# of root\nm/b .*: needs .*\n\n  m/c TestX: a\\.b  \n")
	if err != nil {
		t.Fatal(err)
	}
	skips := []Skip{
		{"m/b", "TestA", "needs rights"},
		{"m/b", "TestA", "it needs rights"},
		{"m/c", "TestX", "a.b"},
		{"m/c", "TestX", "a-b"},
		{"m/c", "TestX", ""},
	}
	want := []Skip{skips[1], skips[3], skips[4]}
	if got := e.Unexpected(skips); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := ParseExpected("ok\n("); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(events)
	f.Fuzz(func(t *testing.T, text string) {
		r := &Reader{Out: new(strings.Builder)}
		if err := r.Read(strings.NewReader(text)); err != nil {
			t.Error(err)
		}
		r.Summary()
	})
}
