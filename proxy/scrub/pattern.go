package scrub

// pattern is one form of a secret as a sequence of symbols: bytes, hexadecimal digits or base64 digits. Digits have
// several spellings, and the first and last base64 digit may include bits of the bytes around the secret.
type pattern struct {
	class *[256]byte // the symbol for a byte, or invalid
	want  []byte
	mask  []byte // the significant bits of each symbol
	wraps bool   // line breaks are allowed between symbols
}

// invalid has a bit that is in every mask, and in no wanted symbol except in the class of bytes.
const invalid = 0x80

func (p *pattern) matches(i int, b byte) bool { return p.class[b]&p.mask[i] == p.want[i] }

var bytesClass, hexClass, base64Class = func() (raw, hex, b64 [256]byte) {
	for b := range 256 {
		raw[b], hex[b], b64[b] = byte(b), invalid, invalid
	}
	for i := range 10 {
		hex['0'+i], b64['0'+i] = byte(i), byte(52+i)
	}
	for i := range 26 {
		b64['A'+i], b64['a'+i] = byte(i), byte(26+i)
	}
	for i := range 6 {
		hex['A'+i], hex['a'+i] = byte(10+i), byte(10+i)
	}
	b64['+'], b64['-'], b64['/'], b64['_'] = 62, 62, 63, 63
	return raw, hex, b64
}()

// patterns returns the forms of a text to search for.
func patterns(text string) []*pattern {
	out := []*pattern{rawPattern(text), hexPattern(text)}
	for before := range 3 {
		out = append(out, base64Pattern(text, before))
	}
	return out
}

func rawPattern(text string) *pattern {
	p := &pattern{class: &bytesClass, want: []byte(text), mask: make([]byte, len(text))}
	for i := range p.mask {
		p.mask[i] = 0xff
	}
	return p
}

func hexPattern(text string) *pattern {
	p := &pattern{class: &hexClass}
	for i := range len(text) {
		p.want = append(p.want, text[i]>>4, text[i]&15)
		p.mask = append(p.mask, 0x0f|invalid, 0x0f|invalid)
	}
	return p
}

// base64Pattern returns the form of text in base64 with the given number of unknown bytes before it in its first group of
// three.
func base64Pattern(text string, before int) *pattern {
	p := &pattern{class: &base64Class, wraps: true}
	for digit := before * 8 / 6; digit*6 < (before+len(text))*8; digit++ {
		var want, mask byte
		for bit := range 6 {
			at := digit*6 + bit - before*8
			want, mask = want<<1, mask<<1
			if at >= 0 && at < len(text)*8 {
				want |= text[at/8] >> (7 - at%8) & 1
				mask |= 1
			}
		}
		p.want = append(p.want, want)
		p.mask = append(p.mask, mask|invalid)
	}
	return p
}
