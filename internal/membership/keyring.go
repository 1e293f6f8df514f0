// SPDX-License-Identifier: Apache-2.0

package membership

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"
)

// keySize is that of the keys that NewKey makes: AES-256.
const keySize = 32

// NewKey returns a random key as it stands in a keyring file.
func NewKey() (string, error) {
	var key [keySize]byte
	if _, err := rand.Read(key[:]); err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return base64.StdEncoding.EncodeToString(key[:]), nil
}

// maxKeyring bounds a keyring file, in bytes, and maxKeys its keys.
const (
	maxKeyring = 64 << 10
	maxKeys    = 16
)

// ReadKeyring reads a keyring file: a base64 key of 16, 24 or 32 bytes a line, the first
// of which encrypts and all of which decrypt. Empty lines and those that begin with #
// do not count.
func ReadKeyring(path string) ([][]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxKeyring {
		err = fmt.Errorf("%d bytes are no keyring", info.Size())
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read the keyring %s: %w", path, err)
	}
	keys, err := parseKeyring(text)
	if err != nil {
		return nil, fmt.Errorf("keyring %s: %w", path, err)
	}
	return keys, nil
}

func parseKeyring(text []byte) ([][]byte, error) {
	var keys [][]byte
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err == nil {
			err = memberlist.ValidateKey(key)
		}
		if err != nil {
			// The line itself is secret.
			return nil, fmt.Errorf("line %d is no key: %d characters that are not the base64 of 16, 24 or 32 bytes", n, len(line))
		}
		if slices.ContainsFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
			return nil, fmt.Errorf("line %d is there twice", n)
		}
		if keys = append(keys, key); len(keys) > maxKeys {
			return nil, fmt.Errorf("there are more than %d keys in it", maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key in it")
	}
	return keys, nil
}

// applyKeys makes a ring that is in use hold keys, the first of which encrypts: new ones
// are added before the first is used, and others are removed last, so that at no moment
// there is less that can be read than before and after.
func applyKeys(ring *memberlist.Keyring, keys [][]byte) error {
	for _, k := range keys {
		if err := ring.AddKey(k); err != nil {
			return err
		}
	}
	if err := ring.UseKey(keys[0]); err != nil {
		return err
	}
	has := func(k []byte) bool {
		return slices.ContainsFunc(keys, func(o []byte) bool { return bytes.Equal(k, o) })
	}
	// The ring's RemoveKey moves the keys behind the one that goes within an array that
	// others may be reading; only taking the last one leaves it alone. So whatever stands
	// behind it is taken out first, and put back.
	now := slices.Clone(ring.GetKeys())
	first := slices.IndexFunc(now, func(k []byte) bool { return !has(k) })
	if first < 0 {
		return nil
	}
	for i := len(now) - 1; i >= first; i-- {
		if err := ring.RemoveKey(now[i]); err != nil {
			return err
		}
	}
	for _, k := range now[first:] {
		if has(k) {
			if err := ring.AddKey(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// keyring is a file that is looked at again and again.
type keyring struct {
	path string
	ring *memberlist.Keyring
	seen fs.FileInfo
}

func openKeyring(path string) (*keyring, error) {
	info, statErr := os.Stat(path)
	keys, err := ReadKeyring(path)
	if err != nil {
		return nil, err
	}
	if statErr != nil {
		info = nil
	}
	ring, err := memberlist.NewKeyring(keys, keys[0])
	if err != nil {
		return nil, fmt.Errorf("keyring %s: %w", path, err)
	}
	return &keyring{path, ring, info}, nil
}

// reload takes up a file that has changed. An error, of which the same file gives but one,
// leaves the keys as they were.
func (k *keyring) reload() (changed bool, err error) {
	info, err := os.Stat(k.path)
	if err != nil {
		if k.seen == nil {
			return false, nil // said already
		}
		k.seen = nil
		return false, fmt.Errorf("look at the keyring: %w", err)
	}
	if k.seen != nil && os.SameFile(info, k.seen) && info.ModTime().Equal(k.seen.ModTime()) && info.Size() == k.seen.Size() {
		return false, nil
	}
	k.seen = info
	keys, err := ReadKeyring(k.path)
	if err != nil {
		return false, err
	}
	return true, applyKeys(k.ring, keys)
}
