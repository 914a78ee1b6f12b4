package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// MinMemory is the minimum memory of a gateway in bytes.
const MinMemory = 128 << 20

// Size is a number of bytes, written with a unit in the configuration: 64MiB.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes Size
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *Size) UnmarshalText(text []byte) error {
	number, unit := strings.TrimSpace(string(text)), Size(1)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, unit = strings.TrimSpace(n), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(unit) {
		return fmt.Errorf("%q is not a size; use one such as 256MiB", text)
	}
	*s = Size(n) * unit
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String formats a size with the largest unit that divides it.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s >= u.bytes && s%u.bytes == 0 {
			return fmt.Sprintf("%d%s", s/u.bytes, u.name)
		}
	}
	return strconv.FormatInt(int64(s), 10)
}
