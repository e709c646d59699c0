package devstack

import (
	"fmt"
	"os"
	"path/filepath"
)

// CacheEnv names a folder for fetched servers; it replaces the default of the
// user's cache folder (root: /var/cache, because the server runs as another
// user, who may not look into root's home).
const CacheEnv = "POSTRIDER_CACHE"

// cacheDir is where fetched servers are kept between runs.
func cacheDir() (string, error) {
	if dir := os.Getenv(CacheEnv); dir != "" {
		return filepath.Abs(dir)
	}
	if os.Geteuid() == 0 {
		return "/var/cache/postrider", nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for fetched servers, set %s: %w", CacheEnv, err)
	}
	return filepath.Join(base, "postrider"), nil
}

// cached gives the folder name of the cache, filling it first where it is not
// there. fill gets an empty folder beside it that is renamed when fill
// succeeds, so a folder in the cache is always whole; a lock lets one process
// fill at a time.
func cached(name string, fill func(dir string) error) (string, error) {
	base, err := cacheDir()
	if err != nil {
		return "", err
	}
	final := filepath.Join(base, name)
	if isDir(final) {
		return final, nil
	}
	if err := os.MkdirAll(base, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(filepath.Join(base, name+".lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if isDir(final) { // filled by the process that we waited for
		return final, nil
	}
	dir, err := os.MkdirTemp(base, "filling-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := fill(dir); err != nil {
		return "", err
	}
	if err := makeReadable(dir); err != nil {
		return "", err
	}
	return final, os.Rename(dir, final)
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// makeReadable lets other users read the tree whatever our umask is.
func makeReadable(root string) error {
	return filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.Mode()&os.ModeSymlink != 0 {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if info.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
