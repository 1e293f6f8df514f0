// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
)

// Info describes an object.
type Info struct {
	Key      string
	Size     int64
	ETag     string // changes with the content
	Modified time.Time
	Meta     map[string]string // of Stat alone: what Put or NewUpload was given, with names in lower case
}

// Stat describes an object. fs.ErrNotExist if there is none.
func (c *Client) Stat(ctx context.Context, at Location) (Info, error) {
	o, err := c.core.StatObject(ctx, at.Bucket, at.Key, minio.StatObjectOptions{})
	if err != nil {
		return Info{}, c.explain("look at", at, err)
	}
	info := Info{Key: at.Key, Size: o.Size, ETag: o.ETag, Modified: o.LastModified, Meta: make(map[string]string, len(o.UserMetadata))}
	for k, v := range o.UserMetadata {
		info.Meta[strings.ToLower(k)] = v
	}
	return info, nil
}

// List calls fn for every object whose key begins with prefix.Key, in bytewise
// order of the keys, until fn returns an error, which comes back as it is.
func (c *Client) List(ctx context.Context, prefix Location, fn func(Info) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for o := range c.core.ListObjectsIter(ctx, prefix.Bucket, minio.ListObjectsOptions{Prefix: prefix.Key, Recursive: true}) {
		if o.Err != nil {
			return c.explain("list", prefix, o.Err)
		}
		if !strings.HasPrefix(o.Key, prefix.Key) {
			return c.explain("list", prefix, fmt.Errorf("the server answered with %q, which was not asked for", o.Key))
		}
		if err := fn(Info{Key: o.Key, Size: o.Size, ETag: o.ETag, Modified: o.LastModified}); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Unfinished is an upload that was neither completed nor aborted.
type Unfinished struct {
	Key   string
	ID    string
	Begun time.Time
}

// Uploads lists the unfinished uploads to keys that begin with prefix.Key.
func (c *Client) Uploads(ctx context.Context, prefix Location) ([]Unfinished, error) {
	var all []Unfinished
	keyMarker, idMarker := "", ""
	for {
		r, err := c.core.ListMultipartUploads(ctx, prefix.Bucket, prefix.Key, keyMarker, idMarker, "", 1000)
		if err != nil {
			return all, c.explain("list uploads to", prefix, err)
		}
		for _, u := range r.Uploads {
			if strings.HasPrefix(u.Key, prefix.Key) {
				all = append(all, Unfinished{Key: u.Key, ID: u.UploadID, Begun: u.Initiated})
			}
		}
		if !r.IsTruncated || r.NextKeyMarker == keyMarker && r.NextUploadIDMarker == idMarker {
			return all, nil
		}
		keyMarker, idMarker = r.NextKeyMarker, r.NextUploadIDMarker
	}
}
