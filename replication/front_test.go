package replication

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// front stands before a scripted walsender and passes bytes on, to put it behind a Unix socket or TLS.
type front struct {
	ln      net.Listener
	backend string
	tls     *tls.Config // nil without
	wg      sync.WaitGroup
	conns   chan net.Conn // what clients are written to, one each

	mu   sync.Mutex
	open []net.Conn
}

func newFront(t *testing.T, ln net.Listener, backend string, secure *tls.Config) *front {
	t.Helper()
	f := &front{ln: ln, backend: backend, tls: secure, conns: make(chan net.Conn, 10)}
	f.wg.Go(f.accept)
	t.Cleanup(f.stop)
	return f
}

func (f *front) stop() {
	_ = f.ln.Close()
	f.mu.Lock()
	for _, c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *front) accept() {
	for {
		client, err := f.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", f.backend)
		if err != nil {
			_ = client.Close()
			continue
		}
		f.mu.Lock()
		f.open = append(f.open, client, server)
		f.mu.Unlock()
		f.wg.Go(func() { f.pass(client, server) })
	}
}

func (f *front) pass(client, server net.Conn) {
	defer func() { _ = server.Close() }()
	if f.tls != nil {
		secure, err := f.greet(client)
		if err != nil {
			_ = client.Close()
			return
		}
		client = secure
	}
	f.conns <- client
	f.wg.Go(func() {
		_, _ = io.Copy(client, server) // an end of any kind
		_ = client.Close()
	})
	_, _ = io.Copy(server, client)
}

// greet answers an SSLRequest.
func (f *front) greet(c net.Conn) (net.Conn, error) {
	if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte{'S'}); err != nil {
		return nil, err
	}
	secure := tls.Server(&batch{Conn: c}, f.tls)
	return secure, secure.Handshake()
}

// batch is a connection that can put many writes into one.
type batch struct {
	net.Conn
	mu   sync.Mutex
	held *bytes.Buffer // nil while nothing is held back
}

func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held != nil {
		return b.held.Write(p)
	}
	return b.Conn.Write(p)
}

// records sends each piece in a TLS record of its own, and all of them in one write.
func records(c net.Conn, pieces [][]byte) error {
	secure, ok := c.(*tls.Conn)
	if !ok {
		return errors.New("no TLS")
	}
	b, ok := secure.NetConn().(*batch)
	if !ok {
		return errors.New("no batch")
	}
	b.mu.Lock()
	b.held = &bytes.Buffer{}
	b.mu.Unlock()
	for _, p := range pieces {
		if _, err := secure.Write(p); err != nil {
			return err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_, err := b.Conn.Write(b.held.Bytes())
	b.held = nil
	return err
}

// unixDSN puts the server at backend behind a Unix socket.
func unixDSN(t *testing.T, backend string) string {
	t.Helper()
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, ".s.PGSQL.5432"))
	if err != nil {
		t.Fatal(err)
	}
	newFront(t, ln, backend, nil)
	return fmt.Sprintf("host=%s port=5432 user=postrider dbname=fake sslmode=disable", dir)
}

// tlsDSN puts it behind TLS.
func tlsDSN(t *testing.T, backend string) (string, *front) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := newFront(t, ln, backend, &tls.Config{Certificates: []tls.Certificate{certificate(t)}, MinVersion: tls.VersionTLS12})
	return fmt.Sprintf("postgres://postrider@%s/fake?sslmode=require", ln.Addr()), f
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
