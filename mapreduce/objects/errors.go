// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	"github.com/minio/minio-go/v7"
)

// What callers ask for with errors.Is, beside fs.ErrNotExist (no such object or
// bucket) and fs.ErrPermission (refused, or signed wrongly). All come in an
// *fs.PathError whose path is the object's URL.
var (
	// ErrChanged means that an object is not the one that was asked for any more.
	ErrChanged = errors.New("was replaced by another object")
	// ErrTaken means that there is an object at a key where none was to be replaced.
	ErrTaken = errors.New("exists already")
	// ErrNoUpload means that an upload was completed or aborted before.
	ErrNoUpload = errors.New("the upload has ended")
	// ErrUnsupported means that the server does not know such a request.
	ErrUnsupported = errors.New("the server does not support this")
)

// storeError is an answer of the server.
type storeError struct {
	kind error // what errors.Is finds; nil: nothing
	what string
	err  error
}

func (e *storeError) Error() string { return e.what }

func (e *storeError) Unwrap() []error { return []error{e.kind, e.err} }

// explain makes an error of what the client library returned when op was done at a location.
func (c *Client) explain(op string, at Location, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	inner := c.classify(at, err)
	if inner == nil {
		inner = fmt.Errorf("%w (endpoint %s)", err, c.endpoint)
	}
	return &fs.PathError{Op: op, Path: at.String(), Err: inner}
}

func (c *Client) classify(at Location, err error) error {
	r := minio.ToErrorResponse(err)
	say := func(kind error, format string, args ...any) error {
		return &storeError{kind: kind, what: fmt.Sprintf(format, args...), err: err}
	}
	switch r.Code {
	case minio.NoSuchBucket:
		return say(fs.ErrNotExist, "there is no bucket %s at %s: check the name, or create it", at.Bucket, c.endpoint)
	case minio.NoSuchKey, "NoSuchVersion":
		return say(fs.ErrNotExist, "there is no such object")
	case minio.NoSuchUpload:
		return say(ErrNoUpload, "the upload was completed or aborted before")
	case "InvalidAccessKeyId", "XAdminUserNotFound", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken":
		return say(fs.ErrPermission, "%s says %s (%s): check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN", c.endpoint, r.Code, r.Message)
	case minio.AccessDenied, "AllAccessDisabled":
		if c.anonymous() {
			return say(fs.ErrPermission, "%s refuses access without credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE", c.endpoint)
		}
		return say(fs.ErrPermission, "%s refuses access with these credentials (%s): check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they are allowed to do", c.endpoint, r.Code)
	case "PreconditionFailed", "ConditionalRequestConflict":
		return say(ErrTaken, "there is an object already")
	case "NotImplemented":
		return say(ErrUnsupported, "%s does not support this (%s)", c.endpoint, r.Message)
	case "InvalidBucketName":
		return say(nil, "%q cannot be the name of a bucket", at.Bucket)
	}
	switch r.StatusCode {
	case http.StatusNotFound:
		return say(fs.ErrNotExist, "there is no such object (%s: %s)", r.Code, r.Message)
	case http.StatusForbidden:
		return say(fs.ErrPermission, "%s refuses access (%s)", c.endpoint, r.Code)
	case http.StatusPreconditionFailed:
		return say(ErrTaken, "there is an object already")
	case http.StatusNotImplemented:
		return say(ErrUnsupported, "%s does not support this", c.endpoint)
	}
	return nil
}
