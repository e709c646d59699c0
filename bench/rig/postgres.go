package rig

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/devstack"
)

// PGSettings is what of PostgreSQL differs from its defaults, for the report. Commits are durable, as in production; what comes
// in between by itself (checkpoints, the removal of WAL) is kept out of the measurements.
func PGSettings() map[string]string {
	return map[string]string{
		"wal_level":             "logical",
		"fsync":                 "on",
		"shared_buffers":        "512MB",
		"max_wal_size":          "32GB",
		"checkpoint_timeout":    "1h",
		"wal_compression":       "off",
		"max_replication_slots": "200",
		"max_wal_senders":       "50",
	}
}

func startPostgres(ctx context.Context) (*devstack.Postgres, error) {
	return devstack.StartPostgres(ctx, devstack.PostgresOptions{Settings: PGSettings(), Fsync: true})
}

// ownName is the application_name of this program's sessions, which cost no contender anything.
const ownName = "postrider-bench"

// Connect opens a session that is not counted as a contender's.
func (r *Rig) Connect(ctx context.Context) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(r.DSN())
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = ownName
	return pgx.ConnectConfig(ctx, cfg)
}

// TLSParams are the DSN's parameters for an encrypted and verified connection.
func (r *Rig) TLSParams() string { return "sslmode=verify-full&sslrootcert=" + r.tlsCA }

// enableTLS gives the server a certificate for 127.0.0.1. Clients choose by sslmode. It returns the file to verify it with.
func enableTLS(ctx context.Context, pg *devstack.Postgres, conn *pgx.Conn) (string, error) {
	cert, key, err := selfSigned(pg.Host)
	if err != nil {
		return "", err
	}
	var owner syscall.Stat_t
	if err := syscall.Stat(pg.DataDir(), &owner); err != nil {
		return "", err
	}
	for name, text := range map[string][]byte{"server.crt": cert, "server.key": key} {
		file := filepath.Join(pg.DataDir(), name)
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return "", err
		}
		if err := os.Chown(file, int(owner.Uid), int(owner.Gid)); err != nil {
			return "", err
		}
	}
	// Contenders of another user than PostgreSQL's cannot look into the data folder.
	ca := filepath.Join(filepath.Dir(pg.DataDir()), "ca.pem")
	if err := os.WriteFile(ca, cert, 0o644); err != nil {
		return "", err
	}
	for _, sql := range []string{"ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	return ca, nil
}

func selfSigned(ip string) (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "postrider-bench"},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.ParseIP(ip)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
	return cert, key, nil
}
