package websocket

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// deflateSizes are pairs of the length of messages and of their fragments; 0 means a single frame.
var deflateSizes = [][2]int{
	{16, 0}, {64, 0}, {256, 0}, {1024, 0}, {4096, 0}, {8192, 0}, {16384, 0}, {32768, 0}, {65536, 0}, {131072, 0},
	{8192, 256}, {16384, 256}, {32768, 256}, {65536, 256}, {131072, 256}, {131072, 1024}, {131072, 4096}, {131072, 32768},
}

const plainOffer = "permessage-deflate; client_no_context_takeover; client_max_window_bits"

// Compression returns sections 12, five kinds of content with the plain offer, and 13, seven sets of parameters. Each
// case sends the given number of messages (Autobahn: 1000), or as many as fit into octets bytes, and at least two.
func Compression(messages, octets int) []Case {
	var all []Case
	for i, c := range contents() {
		all = append(all, compressed("12."+strconv.Itoa(i+1), c, messages, octets, plainOffer)...)
	}
	server := func(params string) string { return plainOffer + params }
	for i, offer := range []string{
		server(""),
		server("; server_no_context_takeover"),
		server("; server_max_window_bits=9"),
		server("; server_max_window_bits=15"),
		server("; server_no_context_takeover; server_max_window_bits=9"),
		server("; server_no_context_takeover; server_max_window_bits=15"),
		server("; server_no_context_takeover; server_max_window_bits=9") + ", " + server("; server_no_context_takeover") + ", " + server(""),
	} {
		all = append(all, compressed("13."+strconv.Itoa(i+1), contents()[0], messages, octets, offer)...)
	}
	return all
}

// content is text to compress. The messages are consecutive pieces of it, wrapping around at the end.
type content struct {
	kind string
	text bool
	data string
}

// contents resemble Autobahn's contents. They are generated deterministically.
func contents() []content {
	r := rand.New(rand.NewPCG(1, 2))
	noise := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return string(b)
	}
	var json, html, prose, picture, document strings.Builder
	words := strings.Fields("habe nun ach philosophie juristerei und medizin durchaus studiert mit heissem bemuehn da steh ich nun")
	for i := range 2000 {
		word := words[r.IntN(len(words))]
		fmt.Fprintf(&json, `{"id":%d,"name":"%s","value":%d.%d},`, i, word, r.IntN(1000), r.IntN(100))
		fmt.Fprintf(&html, `<tr class="row%d"><td><a href="/item/%d">%s</a></td></tr>`+"\n", i&1, i, word)
		prose.WriteString(word + strings.Repeat(" ", 1+i%17/16))
		picture.WriteString(strings.Repeat(string([]byte{byte(128 + 100*(i%64)/64)}), 16+r.IntN(64)))
		document.WriteString(strconv.Itoa(i) + " 0 obj stream" + noise(64) + "endstream\n")
	}
	return []content{
		{"JSON", true, json.String()}, {"a picture", false, picture.String()}, {"prose", false, prose.String()},
		{"HTML", true, html.String()}, {"a document", false, document.String()},
	}
}

func compressed(prefix string, c content, messages, octets int, offer string) []Case {
	var cases []Case
	for _, size := range deflateSizes {
		times := min(messages, max(2, octets/size[0]))
		title := fmt.Sprintf("%d messages of %d octets of %s", times, size[0], c.kind)
		if size[1] > 0 {
			title += " in fragments of " + strconv.Itoa(size[1])
		}
		cases = append(cases, deflated(title, offer, c, size[0], size[1], times))
	}
	return numbered(prefix, cases...)
}

// deflated sends compressed messages, each after the echo of the previous one.
func deflated(title, offer string, c content, size, fragment, times int) Case {
	opcode, kind := byte(opBinary), "binary"
	if c.text {
		opcode, kind = opText, "text"
	}
	out := Case{Title: title, offer: offer}
	stock := strings.Repeat(c.data, 2+size/len(c.data))
	for i := range times {
		from := i * size % len(c.data)
		out.want = append(out.want, event{kind, stock[from : from+size]})
	}
	out.talk = func(s *session) {
		d := deflater{forgets: s.a.clientForgets}
		for i, m := range out.want {
			packed, err := d.compress([]byte(m.payload))
			if err != nil {
				return
			}
			n := fragment
			if n == 0 {
				n = len(packed)
			}
			frames := fragments(opcode, string(packed), n)
			frames[0].rsv = 4
			s.send(send(frames...))
			s.wait(i+1, caseTime)
		}
	}
	return out
}
