// SPDX-License-Identifier: Apache-2.0

package shufflerpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"net/rpc"
	"time"
)

// hello is what both sides send first.
const hello = "QRNRPC1\n"

// helloTime bounds the wait for the other side's hello.
const helloTime = 10 * time.Second

// errTooLarge is returned for messages beyond the limit.
var errTooLarge = errors.New("message is too large")

// greet exchanges hellos. The connection has no deadline afterwards.
func greet(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(helloTime)); err != nil {
		return fmt.Errorf("greet %s: %w", conn.RemoteAddr(), err)
	}
	if _, err := io.WriteString(conn, hello); err != nil {
		return fmt.Errorf("greet %s: %w", conn.RemoteAddr(), err)
	}
	var b [len(hello)]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return fmt.Errorf("greet %s: %w", conn.RemoteAddr(), err)
	}
	if string(b[:]) != hello {
		return fmt.Errorf("greet %s: it says %q, not %q: no Quern of this version listens there", conn.RemoteAddr(), b, hello)
	}
	return conn.SetDeadline(time.Time{})
}

// encoded is a body that was encoded before; see Client.
type encoded []byte

// encode makes a gob stream of a body.
func encode(body any) (encoded, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(body); err != nil {
		return nil, fmt.Errorf("encode %T: %w", body, err)
	}
	return b.Bytes(), nil
}

// transport reads and writes messages. A body is a gob stream of its own behind
// the header's, so that it can be made before the header is known.
type transport struct {
	conn  net.Conn
	limit int // bytes of a message
	in    *bufio.Reader
	out   *bufio.Writer
	body  []byte // of the message whose header was read last
}

func newTransport(conn net.Conn, limit int) *transport {
	return &transport{conn: conn, limit: limit, in: bufio.NewReader(conn), out: bufio.NewWriter(conn)}
}

// read reads a message and decodes its header.
func (t *transport) read(head any) error {
	message, err := readMessage(t.in, t.limit)
	if err != nil {
		return err
	}
	t.body, err = splitMessage(message, head)
	return err
}

// decode decodes the body of the message that was read last. A nil body is skipped.
func (t *transport) decode(body any) error {
	b := t.body
	t.body = nil
	if body == nil {
		return nil
	}
	return gob.NewDecoder(bytes.NewReader(b)).Decode(body)
}

func (t *transport) write(head any, body encoded) error {
	h, err := encode(head)
	if err != nil {
		return err
	}
	n := 4 + len(h) + len(body)
	if n > t.limit {
		return fmt.Errorf("%w: %d bytes, the limit is %d", errTooLarge, n, t.limit)
	}
	var sizes [8]byte
	binary.LittleEndian.PutUint32(sizes[:], uint32(n))
	binary.LittleEndian.PutUint32(sizes[4:], uint32(len(h)))
	// Errors of a bufio.Writer stay; Flush returns the first.
	_, _ = t.out.Write(sizes[:])
	_, _ = t.out.Write(h)
	_, _ = t.out.Write(body)
	return t.out.Flush()
}

// readMessage reads a length and the bytes that follow. What is allocated grows
// with what arrives, not with what the length claims.
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(size[:]))
	if n > int64(limit) {
		return nil, fmt.Errorf("%w: %d bytes are announced, the limit is %d", errTooLarge, n, limit)
	}
	var b bytes.Buffer
	if _, err := io.CopyN(&b, r, n); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return b.Bytes(), nil
}

// splitMessage decodes a message's header and returns its body.
func splitMessage(message []byte, head any) (body []byte, err error) {
	if len(message) < 4 {
		return nil, fmt.Errorf("message of %d bytes: %w", len(message), io.ErrUnexpectedEOF)
	}
	n := int64(binary.LittleEndian.Uint32(message))
	message = message[4:]
	if n > int64(len(message)) {
		return nil, fmt.Errorf("header of %d bytes in a message of %d: %w", n, len(message), io.ErrUnexpectedEOF)
	}
	if err := gob.NewDecoder(bytes.NewReader(message[:n])).Decode(head); err != nil {
		return nil, fmt.Errorf("header of a message: %w", err)
	}
	return message[n:], nil
}

// clientCodec is net/rpc's view of a client's transport.
type clientCodec struct{ *transport }

func (c clientCodec) WriteRequest(r *rpc.Request, body any) error { return c.write(r, body.(encoded)) }
func (c clientCodec) ReadResponseHeader(r *rpc.Response) error    { return c.read(r) }
func (c clientCodec) ReadResponseBody(body any) error             { return c.decode(body) }
func (c clientCodec) Close() error                                { return c.conn.Close() }

// serverCodec is net/rpc's view of a server's transport.
type serverCodec struct {
	*transport
	ctx  context.Context // of the connection
	gone func()          // ends it: nothing more will be read
}

func (c serverCodec) ReadRequestHeader(r *rpc.Request) error {
	err := c.read(r)
	if err != nil {
		// net/rpc waits for the calls that are in progress before it closes the
		// codec; they wait for their contexts.
		c.gone()
		return io.EOF // anything else is logged by net/rpc
	}
	return nil
}

func (c serverCodec) ReadRequestBody(body any) error { return c.decode(body) }

func (c serverCodec) WriteResponse(r *rpc.Response, body any) error {
	if c.ctx.Err() != nil {
		// What a call says that ended with its connection is not an answer to the
		// client, whose own context may well go on.
		c.conn.Close()
		return nil
	}
	b, err := encode(body)
	if err == nil {
		err = c.write(r, b)
	}
	if errors.Is(err, errTooLarge) {
		r.Error = fmt.Sprintf("the answer cannot be sent: %v", err)
		if b, err = encode(false); err == nil {
			err = c.write(r, b)
		}
	}
	if err != nil {
		c.conn.Close()
	}
	return nil // an error is logged by net/rpc and does nothing else
}

func (c serverCodec) Close() error { return c.conn.Close() }
