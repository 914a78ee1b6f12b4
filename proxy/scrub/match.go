package scrub

// wrapFrom is the number of digits after which a line may break: a text that ends a line with fewer digits of a form is
// not buffered for it.
const wrapFrom = 3

// thread is one way to read a text from the start of a possible match: size bytes read as n symbols.
type thread struct {
	at, symbol int
	broken     lineBreak
}

// lineBreak is the part of a line break that was just read.
type lineBreak uint8

const (
	noBreak lineBreak = iota
	carriageReturn
	lineFeed
)

// manyThreads is the number of threads above which duplicates are tracked: a text of backslashes can be read in very
// many ways.
const manyThreads = 64

// find returns the end of the longest form that begins at b[0], or 0, and whether more text could yield a longer one.
func (p *pattern) find(b []byte) (end int, more bool) {
	var room [16]thread
	threads := append(room[:0], thread{})
	var seen map[thread]bool
	for made := 0; len(threads) > 0; made++ {
		t := threads[len(threads)-1]
		threads = threads[:len(threads)-1]
		if made >= manyThreads {
			if seen == nil {
				seen = map[thread]bool{}
			}
			if seen[t] {
				continue
			}
			seen[t] = true
		}
		t = p.matchLiterals(b, t)
		switch {
		case t.symbol == len(p.want):
			end = max(end, t.at)
		case t.at == len(b):
			more = true
		case special[b[t.at]]:
			var short bool
			threads, short = p.matchReadings(b, t, threads)
			more = more || short
		case p.wraps:
			threads = p.afterLineBreak(t, reading{text: [4]byte{b[t.at]}, n: 1, size: 1}, threads)
		}
	}
	return end, more
}

// matchLiterals follows a thread while there is only one way to read the text.
func (p *pattern) matchLiterals(b []byte, t thread) thread {
	for t.symbol < len(p.want) && t.at < len(b) && !special[b[t.at]] && p.matches(t.symbol, b[t.at]) {
		t = thread{at: t.at + 1, symbol: t.symbol + 1}
	}
	return t
}

// matchReadings adds a thread for each reading of the text at t, and reports whether the text ends before all of them are
// known.
func (p *pattern) matchReadings(b []byte, t thread, threads []thread) ([]thread, bool) {
	var all readings
	all.parse(b[t.at:])
	for _, r := range all.list[:all.n] {
		if p.matchesReading(t.symbol, r) {
			threads = append(threads, thread{at: t.at + r.size, symbol: t.symbol + r.n})
		} else {
			threads = p.afterLineBreak(t, r, threads)
		}
	}
	return threads, all.short
}

// matchesReading reports whether the reading matches the pattern from the symbol on.
func (p *pattern) matchesReading(symbol int, r reading) bool {
	if symbol+r.n > len(p.want) {
		return false
	}
	for i := range r.n {
		if !p.matches(symbol+i, r.text[i]) {
			return false
		}
	}
	return true
}

// afterLineBreak adds the thread that continues after a line break, if one was read: CR, LF or CRLF.
func (p *pattern) afterLineBreak(t thread, r reading, threads []thread) []thread {
	if !p.wraps || t.symbol < wrapFrom || r.n != 1 {
		return threads
	}
	next := thread{at: t.at + r.size, symbol: t.symbol}
	switch {
	case r.text[0] == '\r' && t.broken == noBreak:
		next.broken = carriageReturn
	case r.text[0] == '\n' && t.broken != lineFeed:
		next.broken = lineFeed
	default:
		return threads
	}
	return append(threads, next)
}
