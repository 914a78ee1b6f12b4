package learn

import (
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"boxgate/policy"
	"boxgate/policy/name"
)

// Suspicion is why a person should read a name twice before it becomes an entry of a policy.
type Suspicion struct {
	Why     Why      // "", WhyLookAlike or WhyPunycode
	Like    string   // the domain that the name imitates, of the policy or a preset
	Unicode string   // the name as a program may show it; "" if that is the name itself
	Scripts []string // of the letters of its labels that are not ASCII; more than one are a warning
}

// Suspect returns the suspicion about a name that is to be allowed, such as "paypa1.com". Names that the policy allows already are
// above suspicion.
func Suspect(now policy.Spec, of string, port uint16) (s Suspicion) {
	n, err := name.Parse(of)
	if err != nil {
		return s
	}
	k := knownNames(now)
	h := &host{Destination: Destination{Name: n.String(), Port: port}}
	if s.Why, s.Like = h.doubt(k); s.Why == WhyTelemetry {
		s.Why = ""
	}
	shown, err := idna.Punycode.ToUnicode(n.String())
	if err != nil || shown == n.String() {
		return s
	}
	s.Unicode, s.Scripts = shown, scriptsOf(shown)
	if latin := latinOf(shown); s.Why == WhyPunycode && latin != shown {
		if like := k.resembled(latin); like != "" {
			s.Why, s.Like = WhyLookAlike, like
		}
	}
	return s
}

// resembled returns the known domain that a name is spelled like, or imitates.
func (k *known) resembled(host string) string {
	for at, more := host, true; more; _, at, more = strings.Cut(at, ".") {
		if _, is := k.at[at]; is {
			return at
		}
	}
	return k.imitated(host)
}

// scriptsOf returns the scripts of the letters in the labels of a name that are not ASCII, in the order of their first letter.
func scriptsOf(text string) (list []string) {
	seen := map[string]bool{}
	for label := range strings.SplitSeq(text, ".") {
		if isASCII := !strings.ContainsFunc(label, func(r rune) bool { return r > unicode.MaxASCII }); isASCII {
			continue
		}
		for _, script := range scriptsIn(label) {
			if !seen[script] {
				seen[script] = true
				list = append(list, script)
			}
		}
	}
	return list
}

// scriptsIn returns the script of each letter of a label.
func scriptsIn(label string) (list []string) {
	for _, r := range label {
		if !unicode.IsLetter(r) {
			continue
		}
		for script, table := range unicode.Scripts {
			if unicode.Is(table, r) {
				list = append(list, script)
			}
		}
	}
	return list
}

// latinOf replaces letters of other scripts, and letters with marks, by the Latin letters that look like them. It has the letters of
// Unicode's confusables.txt (UTS #39) that are common in imitations, and no other.
func latinOf(text string) string { return latin.Replace(text) }

var latin = strings.NewReplacer(
	// Cyrillic
	"а", "a", "ԁ", "d", "е", "e", "ё", "e", "һ", "h", "і", "i", "ї", "i", "ј", "j", "ӏ", "l", "к", "k", "м", "m", "п", "n", "о", "o", "р", "p", "ԛ", "q",
	"г", "r", "ѕ", "s", "т", "t", "у", "y", "ѵ", "v", "ԝ", "w", "х", "x", "с", "c", "ь", "b", "в", "b", "н", "h",
	// Greek
	"α", "a", "ε", "e", "η", "n", "ι", "i", "κ", "k", "ν", "v", "ο", "o", "ρ", "p", "σ", "o", "τ", "t", "υ", "u", "χ", "x", "ω", "w", "γ", "y",
	// Latin letters with marks
	"á", "a", "à", "a", "â", "a", "ä", "a", "ã", "a", "å", "a", "ą", "a", "ạ", "a", "ç", "c", "ć", "c", "č", "c", "ċ", "c", "ď", "d", "đ", "d", "é", "e", "è", "e",
	"ê", "e", "ë", "e", "ė", "e", "ę", "e", "ẹ", "e", "ğ", "g", "ġ", "g", "ḣ", "h", "í", "i", "ì", "i", "î", "i", "ï", "i", "ı", "i", "ị", "i", "ķ", "k", "ĺ", "l",
	"ł", "l", "ḷ", "l", "ṁ", "m", "ṃ", "m", "ñ", "n", "ń", "n", "ṇ", "n", "ó", "o", "ò", "o", "ô", "o", "ö", "o", "õ", "o", "ø", "o", "ọ", "o", "ŕ", "r", "ṛ", "r",
	"ś", "s", "š", "s", "ş", "s", "ṣ", "s", "ţ", "t", "ť", "t", "ṭ", "t", "ú", "u", "ù", "u", "û", "u", "ü", "u", "ů", "u", "ụ", "u", "ý", "y", "ÿ", "y", "ź", "z",
	"ž", "z", "ż", "z", "ẓ", "z",
	// further Latin letters
	"ɑ", "a", "ɡ", "g", "ɩ", "i", "ʀ", "r", "ſ", "f", "ʏ", "y", "ꮯ", "c", "ꮪ", "s", "օ", "o", "ո", "n", "ս", "u", "հ", "h",
)
