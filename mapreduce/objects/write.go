// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"io/fs"

	"github.com/minio/minio-go/v7"
)

// WriteOptions are for whole objects.
type WriteOptions struct {
	Meta map[string]string // kept with the object, see Info.Meta; names of letters and -
	// New makes it ErrTaken if there is an object at that key. ErrUnsupported
	// says that the server cannot tell.
	New bool
}

func (o WriteOptions) put() minio.PutObjectOptions {
	p := minio.PutObjectOptions{UserMetadata: o.Meta, DisableMultipart: true}
	if o.New {
		p.SetMatchETagExcept("*")
	}
	return p
}

// digest returns what the server is to compare a body with.
func digest(data []byte) string {
	sum := md5.Sum(data)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// Put writes a small object.
func (c *Client) Put(ctx context.Context, at Location, data []byte, opts WriteOptions) error {
	_, err := c.core.PutObject(ctx, at.Bucket, at.Key, bytes.NewReader(data), int64(len(data)), digest(data), "", opts.put())
	return c.explain("write", at, err)
}

// Delete removes an object. One that is not there is no error.
func (c *Client) Delete(ctx context.Context, at Location) error {
	err := c.explain("remove", at, c.core.RemoveObject(ctx, at.Bucket, at.Key, minio.RemoveObjectOptions{}))
	if errors.Is(err, fs.ErrNotExist) && minio.ToErrorResponse(err).Code != minio.NoSuchBucket {
		return nil
	}
	return err
}

// NewUpload begins an upload. There is no object until Complete.
func (c *Client) NewUpload(ctx context.Context, at Location, meta map[string]string) (id string, err error) {
	id, err = c.core.NewMultipartUpload(ctx, at.Bucket, at.Key, minio.PutObjectOptions{UserMetadata: meta})
	return id, c.explain("begin an upload to", at, err)
}

// MinPart is the least size of a part but the last one, and MaxParts how many there may be.
const (
	MinPart  = 5 << 20
	MaxParts = 10_000
)

// PutPart uploads part n (from 1) and returns its tag, which Complete takes.
func (c *Client) PutPart(ctx context.Context, at Location, id string, n int, data []byte) (tag string, err error) {
	p, err := c.core.PutObjectPart(ctx, at.Bucket, at.Key, id, n, bytes.NewReader(data), int64(len(data)), minio.PutObjectPartOptions{Md5Base64: digest(data)})
	if err != nil {
		return "", c.explain("write", at, err)
	}
	return p.ETag, nil
}

// Complete makes an object of the parts of an upload, in one step. ErrNoUpload
// says that the upload has ended: who completed it before can tell by the
// object's Meta.
func (c *Client) Complete(ctx context.Context, at Location, id string, tags []string, opts WriteOptions) error {
	parts := make([]minio.CompletePart, len(tags))
	for i, tag := range tags {
		parts[i] = minio.CompletePart{PartNumber: i + 1, ETag: tag}
	}
	opts.Meta = nil
	_, err := c.core.CompleteMultipartUpload(ctx, at.Bucket, at.Key, id, parts, opts.put())
	return c.explain("complete the upload to", at, err)
}

// Abort removes an upload. One that has ended is no error.
func (c *Client) Abort(ctx context.Context, at Location, id string) error {
	err := c.explain("abort the upload to", at, c.core.AbortMultipartUpload(ctx, at.Bucket, at.Key, id))
	if errors.Is(err, ErrNoUpload) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
