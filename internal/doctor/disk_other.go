//go:build !linux && !darwin

package doctor

import "errors"

func diskSpace(string) (free, total int64, err error) {
	return 0, 0, errors.New("not known on this system")
}
