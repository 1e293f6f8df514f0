// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"strings"
)

// Scheme is what names of objects begin with.
const Scheme = "s3://"

// IsURL says whether a path names objects: it begins with s3://.
func IsURL(path string) bool { return strings.HasPrefix(path, Scheme) }

// Location is a bucket and the key of an object in it, or the beginning of keys.
type Location struct {
	Bucket string
	Key    string
}

// Parse takes s3://BUCKET/KEY apart. The key may be empty.
func Parse(url string) (Location, error) {
	rest, ok := strings.CutPrefix(url, Scheme)
	bucket, key, _ := strings.Cut(rest, "/")
	if !ok || bucket == "" {
		return Location{}, fmt.Errorf("%q names no bucket: write %sBUCKET/KEY", url, Scheme)
	}
	return Location{bucket, key}, nil
}

// String returns the location as Parse takes it.
func (l Location) String() string {
	if l.Key == "" {
		return Scheme + l.Bucket
	}
	return Scheme + l.Bucket + "/" + l.Key
}

// Join returns the location with more behind its key and a slash.
func (l Location) Join(name string) Location {
	if l.Key != "" && !strings.HasSuffix(l.Key, "/") {
		name = "/" + name
	}
	return Location{l.Bucket, l.Key + name}
}
