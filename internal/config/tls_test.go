package config

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// writePair makes a self-signed certificate and its key.
func writePair(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{name + ".pem": {Type: "CERTIFICATE", Bytes: cert}, name + ".key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Files of certificates and keys are read relative to the configuration's folder.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writePair(t, dir, "one")
	writePair(t, dir, "two")
	parse := func(cert, key string) (*Config, error) {
		text := fmt.Sprintf("kafka: {brokers: [k:9092], tls: {ca_file: one.pem, cert_file: %s, key_file: %s, server_name: kafka}}\n", cert, key)
		return Parse(filepath.Join(dir, "postrider.yaml"), []byte(text+strings.ReplaceAll(tlsRest, "kafka: {brokers: [localhost:9092]}\n", "")), testEnvironment(nil))
	}
	c, err := parse("one.pem", "one.key")
	if err != nil {
		t.Fatal(err)
	}
	client := c.PublisherConfig().TLS
	if client == nil || client.RootCAs == nil || len(client.Certificates) != 1 || client.ServerName != "kafka" || client.InsecureSkipVerify {
		t.Error("the client's TLS configuration lacks what was configured")
	}
	for _, wrong := range [][2]string{{"one.pem", "two.key"}, {"one.key", "one.key"}} {
		_, err := parse(wrong[0], wrong[1])
		if err == nil || !strings.Contains(err.Error(), "kafka.tls.key_file: certificate and key do not load") {
			t.Errorf("%v: %v", wrong, err)
		}
	}
}

const tlsRest = "postgres: {host: localhost, database: shop, user: relay, slot: s, publication: p}\n" + restOfMinimal
