// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quernmr/quern/mapreduce/cluster/api"
)

// chunk is how much of a blob a message carries.
const chunk = 1 << 20

// Platform returns GOOS/GOARCH of a program that workers can run: an executable for Linux that
// needs no other file. Other errors than ErrProgram are of reading it.
func Platform(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("the program: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	file, err := elf.NewFile(f)
	var format *elf.FormatError
	if errors.As(err, &format) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "", fmt.Errorf("%w: %s is no executable for Linux; build it by CGO_ENABLED=0 GOOS=linux go build", ErrProgram, path)
	}
	if err != nil {
		return "", fmt.Errorf("the program %s: %w", path, err)
	}
	if file.Type != elf.ET_EXEC && file.Type != elf.ET_DYN {
		return "", fmt.Errorf("%w: %s is %v, and no executable", ErrProgram, path, file.Type)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%w: %s needs libraries of the machine it was built on; build it by CGO_ENABLED=0 go build", ErrProgram, path)
		}
	}
	arch := map[elf.Machine]string{
		elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64", elf.EM_386: "386", elf.EM_ARM: "arm", elf.EM_RISCV: "riscv64",
		elf.EM_S390: "s390x", elf.EM_LOONGARCH: "loong64",
	}[file.Machine]
	if file.Machine == elf.EM_PPC64 {
		arch = "ppc64"
		if file.ByteOrder.String() == "LittleEndian" {
			arch = "ppc64le"
		}
	}
	if arch == "" {
		return "", fmt.Errorf("%w: %s is for a processor (%v) that quern does not know", ErrProgram, path, file.Machine)
	}
	return "linux/" + arch, nil
}

// fileDigest returns the digest by which a blob is known, and its size.
func fileDigest(ctx context.Context, path string) (digest string, size int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return "", 0, fmt.Errorf("upload: %w", err)
	}
	defer func() { _ = f.Close() }() // only read from
	if info, err := f.Stat(); err != nil {
		return "", 0, fmt.Errorf("upload: %w", err)
	} else if !info.Mode().IsRegular() {
		return "", 0, fmt.Errorf("upload %s: only plain files can be", path)
	}
	h := sha256.New()
	if size, err = io.Copy(h, contextReader{ctx, f}); err != nil {
		return "", 0, fmt.Errorf("upload %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), size, nil
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// upload stores local files as blobs, those that the master has not.
func (c *Client) upload(ctx context.Context, files []Upload) ([]*api.Upload, error) {
	var out []*api.Upload
	var digests []string
	local := map[string]string{}
	for _, f := range files {
		digest, size, err := fileDigest(ctx, f.Local)
		if err != nil {
			return nil, err
		}
		name := f.Name
		if name == "" {
			name = f.Local
		}
		out = append(out, &api.Upload{Path: name, Blob: digest, Size: size})
		if local[digest] == "" {
			digests = append(digests, digest)
		}
		local[digest] = f.Local
	}
	if len(digests) == 0 {
		return nil, nil
	}
	return out, c.store(ctx, digests, local)
}

// store sends the blobs that the master has not; local has their files.
func (c *Client) store(ctx context.Context, digests []string, local map[string]string) error {
	var missing []string
	err := c.try(ctx, nil, func(ctx context.Context) error {
		reply, err := c.rpc.HasBlobs(ctx, &api.HasBlobsRequest{Digests: digests})
		missing = reply.GetMissing()
		return err
	})
	if err != nil {
		return err
	}
	for _, digest := range missing {
		path, ok := local[digest]
		if !ok {
			return fmt.Errorf("%w: the master asks for a blob that was not offered", ErrVersion)
		}
		if err := c.put(ctx, digest, path); err != nil {
			return fmt.Errorf("upload %s: %w", path, err)
		}
	}
	return nil
}

// put sends one blob, anew if the master went away meanwhile.
func (c *Client) put(ctx context.Context, digest, path string) error {
	const tries = 5 // that it takes some time to fail
	again := c.newRetry()
	for long := 0; ; {
		begun := time.Now()
		err := c.putOnce(ctx, digest, path)
		if time.Since(begun) > longestRetry {
			if long++; long == tries {
				return c.explain(ctx, err, nil)
			}
			again.reset()
		}
		if err == nil || !again.after(ctx, err) {
			return c.explain(ctx, err, nil)
		}
	}
}

func (c *Client) putOnce(ctx context.Context, digest, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read from
	info, err := f.Stat()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.with(ctx))
	defer cancel()
	stream, err := c.rpc.PutBlob(ctx)
	if err != nil {
		return err
	}
	buffer := make([]byte, chunk)
	message := &api.BlobChunk{Digest: digest, Size: info.Size()}
	for {
		n, err := io.ReadFull(f, buffer)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		last := err != nil
		message.Data = buffer[:n]
		// gRPC may keep the message after Send.
		sent := &api.BlobChunk{Digest: message.Digest, Size: message.Size, Data: append([]byte(nil), message.Data...)}
		if err := stream.Send(sent); errors.Is(err, io.EOF) {
			break // CloseAndRecv says why
		} else if err != nil {
			return err
		}
		message.Digest, message.Size = "", 0
		if last {
			break
		}
	}
	reply, err := stream.CloseAndRecv()
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	if err == nil && reply.GetDigest() != digest {
		return errors.New("it changed while it was sent")
	}
	return err
}
