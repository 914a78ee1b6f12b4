package audit

import (
	"math/bits"
	"slices"
	"strconv"
)

// pairs are the numbers from 00 to 99.
const pairs = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849" +
	"5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899"

// powers are the powers of ten.
var powers = func() (p [20]uint64) {
	p[0] = 1
	for i := range len(p) - 1 {
		p[i+1] = 10 * p[i]
	}
	return p
}()

// octet is a decimal octet of an IPv4 address, followed by a dot.
type octet struct {
	text [4]byte
	size int
}

var octets = func() (all [256]octet) {
	for i := range all {
		all[i].size = copy(all[i].text[:], strconv.Itoa(i)+".")
	}
	return all
}()

// appendDecimal is [strconv.AppendUint] in half the time: most fields of a line are numbers.
func appendDecimal(b []byte, n uint64) []byte {
	size := bits.Len64(n) * 1233 >> 12 // the number of digits, or one too few: 1233/4096 is a little more than log10(2)
	if n == 0 || n >= powers[size] {
		size++
	}
	b = slices.Grow(b, size)[:len(b)+size]
	digits := b[len(b)-size:]
	for len(digits) >= 2 {
		end := len(digits) - 2
		pair := n % 100 * 2
		n /= 100
		digits[end], digits[end+1] = pairs[pair], pairs[pair+1]
		digits = digits[:end]
	}
	if len(digits) > 0 {
		digits[0] = byte('0' + n)
	}
	return b
}

func appendIPv4(b []byte, ip [4]byte) []byte {
	for _, n := range ip {
		o := &octets[n]
		b = append(b, o.text[:]...)
		b = b[:len(b)-len(o.text)+o.size]
	}
	return b[:len(b)-1]
}
