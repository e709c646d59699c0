// Package debezium sets up Debezium's connector for PostgreSQL with its Outbox Event Router in a Kafka Connect worker
// (standalone), as a peer of the benchmark.
package debezium

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/postrider/postrider/internal/devstack"
)

// Versions of what pom.xml brings; a test compares them with it.
const (
	Version        = "3.6.1.Final"
	ConnectVersion = "4.3.0"
)

// ErrNoJava says that this machine cannot run the peer.
var ErrNoJava = errors.New("debezium needs Java 17 or newer, and Maven to fetch it once")

//go:embed pom.xml
var pom []byte

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// Java is the runtime: JAVA_HOME's, else the PATH's. It must be new enough for Debezium.
func Java(ctx context.Context) (string, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	path, err := exec.LookPath(java)
	if err != nil {
		return "", fmt.Errorf("%w: no java on the PATH", ErrNoJava)
	}
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s -version: %w", ErrNoJava, path, err)
	}
	m := javaVersion.FindSubmatch(out)
	if m == nil {
		return "", fmt.Errorf("%w: %s tells no version", ErrNoJava, path)
	}
	if n, _ := strconv.Atoi(string(m[1])); n < 17 {
		return "", fmt.Errorf("%w: %s is version %d", ErrNoJava, path, n)
	}
	return path, nil
}

// Jars gives the folder with Connect, Debezium and what they need, fetched by Maven once for each pom.xml and kept
// where devstack keeps its servers.
func Jars(ctx context.Context) (string, error) {
	base, err := cacheDir()
	if err != nil {
		return "", err
	}
	final := filepath.Join(base, fmt.Sprintf("debezium-%s-%08x", Version, crc32.ChecksumIEEE(pom)))
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("%w: no mvn on the PATH", ErrNoJava)
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	// Renamed when it is whole: a folder that is there needs no second look.
	dir, err := os.MkdirTemp(base, "filling-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := copyDependencies(ctx, mvn, dir); err != nil {
		return "", err
	}
	return final, os.Rename(dir, final)
}

func copyDependencies(ctx context.Context, mvn, dir string) error {
	scratch, err := os.MkdirTemp("", "postrider-maven-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := os.WriteFile(filepath.Join(scratch, "pom.xml"), pom, 0o644); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "dependency:copy-dependencies",
		"-DoutputDirectory="+dir, "-DincludeScope=runtime")
	cmd.Dir = scratch
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s: %w\n%s", ErrNoJava, mvn, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// cacheDir is devstack's rule.
func cacheDir() (string, error) {
	if dir := os.Getenv(devstack.CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/postrider", nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for fetched programs, set %s: %w", devstack.CacheEnv, err)
	}
	return filepath.Join(base, "postrider"), nil
}
