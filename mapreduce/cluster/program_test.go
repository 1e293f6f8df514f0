// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// executable makes the head of an executable with program headers of these types.
func executable(machine elf.Machine, kind elf.Type, order binary.ByteOrder, progs ...elf.ProgType) []byte {
	const head, prog = 64, 56
	var b bytes.Buffer
	h := elf.Header64{
		Type: uint16(kind), Machine: uint16(machine), Version: 1,
		Phoff: head, Ehsize: head, Phentsize: prog, Phnum: uint16(len(progs)), Shentsize: 64,
	}
	data := elf.ELFDATA2LSB
	if order == binary.BigEndian {
		data = elf.ELFDATA2MSB
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(data), byte(elf.EV_CURRENT)
	// A bytes.Buffer takes all that is written.
	_ = binary.Write(&b, order, &h)
	for _, p := range progs {
		_ = binary.Write(&b, order, &elf.Prog64{Type: uint32(p)})
	}
	return b.Bytes()
}

func TestPlatform(t *testing.T) {
	for _, c := range []struct {
		name string
		file []byte
		want string
		says string
	}{
		{"static", executable(elf.EM_X86_64, elf.ET_EXEC, binary.LittleEndian, elf.PT_LOAD), "linux/amd64", ""},
		{"static and at any address", executable(elf.EM_AARCH64, elf.ET_DYN, binary.LittleEndian, elf.PT_LOAD, elf.PT_DYNAMIC), "linux/arm64", ""},
		{"little end first", executable(elf.EM_PPC64, elf.ET_EXEC, binary.LittleEndian), "linux/ppc64le", ""},
		{"big end first", executable(elf.EM_PPC64, elf.ET_EXEC, binary.BigEndian), "linux/ppc64", ""},
		{"needs libraries", executable(elf.EM_X86_64, elf.ET_DYN, binary.LittleEndian, elf.PT_LOAD, elf.PT_INTERP), "", "CGO_ENABLED=0"},
		{"an object", executable(elf.EM_X86_64, elf.ET_REL, binary.LittleEndian), "", "ET_REL"},
		{"another processor", executable(elf.EM_68K, elf.ET_EXEC, binary.LittleEndian), "", "EM_68K"},
		{"a script", []byte("#!/bin/sh\necho\n"), "", "no executable for Linux"},
		{"nothing", nil, "", "no executable for Linux"},
		{"cut off", executable(elf.EM_X86_64, elf.ET_EXEC, binary.LittleEndian, elf.PT_LOAD)[:70], "", "no executable for Linux"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := Platform(path)
			if got != c.want || (err == nil) != (c.says == "") {
				t.Fatalf("%q, %v; want %q", got, err, c.want)
			}
			if err != nil && (!errors.Is(err, ErrProgram) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path)) {
				t.Errorf("%v, want %q in it", err, c.says)
			}
		})
	}
	if _, err := Platform(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func FuzzPlatform(f *testing.F) {
	f.Add(executable(elf.EM_X86_64, elf.ET_EXEC, binary.LittleEndian, elf.PT_LOAD))
	f.Add(executable(elf.EM_X86_64, elf.ET_DYN, binary.LittleEndian, elf.PT_INTERP))
	f.Fuzz(func(t *testing.T, file []byte) {
		path := filepath.Join(t.TempDir(), "program")
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Platform(path); (err == nil) != strings.HasPrefix(got, "linux/") {
			t.Errorf("%q, %v", got, err)
		}
	})
}
