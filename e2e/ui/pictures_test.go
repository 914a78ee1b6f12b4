package ui

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"boxgate/api"
	"boxgate/config"
	"boxgate/e2e/harness"
	"boxgate/internal/nightly"
)

// picturesVariable is the environment variable with the directory for the pictures, set by `make docs`.
const picturesVariable = "BOXGATE_PICTURES"

// mostPicture is the largest size of a picture in bytes.
const mostPicture = 160 << 10

// Pictures of every page, at three widths and in both themes. `make docs` writes them to docs/pictures/dashboard.
func TestPicturesOfAllPages(t *testing.T) {
	dir := os.Getenv(picturesVariable)
	if dir == "" {
		nightly.Only(t) // a hundred pictures
		dir = t.TempDir()
	}
	w := harness.NewWorld(t, func(c *config.Config) { c.Approvals.Enabled, c.Approvals.EveryBox = true, true })
	box := neighbours(t, w)
	b := newBrowser(t, w.Net.Gateway())
	out := b.open(t, "sign-in", nil)
	out.visit("/ui/")
	takeAll(t, out, dir, "sign-in")
	p := operator(t, w, b, "a", nil)
	p.visit("/ui/boxes/" + box)
	p.do("waitText", "#live tr", "other.evil.net")
	link := get[string](p, "evaluate", `[...document.querySelectorAll("#live tr")].find(e => e.textContent.includes("other.evil.net")).querySelector("a").getAttribute("href")`)
	for _, at := range append(pagesOf(box), struct{ name, path string }{"decision", link}) {
		p.visit(at.path)
		takeAll(t, p, dir, at.name)
	}
	p.visit("/ui/boxes/" + box + "/policy")
	p.do("fill", "textarea", "{\n  \"mode\": \"custom\",\n  \"allowed_domains\": [\n    \"api.example.com\",\n    \"cdn.example.org:443\",\n    \"*.github.io\"\n  ]\n}")
	p.do("click", "button[value=check]")
	p.do("wait", "button[value=apply]")
	takeAll(t, p, dir, "policy-effect")
	p.visit("/ui/requests")
	p.do("click", "tbody th a")
	p.do("wait", "form.answer")
	takeAll(t, p, dir, "request")
}

// neighbours makes further boxes beside that of furnish, so that lists look as in use.
func neighbours(t *testing.T, w *harness.World) string {
	t.Helper()
	box := furnish(t, w)
	for i, policy := range []map[string]any{
		{"mode": "deny-all"}, {"named": "web"}, {"named": "web"}, harness.Custom("api.example.com", "*.example.org"), {"mode": "allow-all"}, {"named": "web"},
		harness.Custom("www.example.com:443"), {"named": "web"}, harness.Custom("git.example.com"), {"named": "web"},
	} {
		w.Create(map[string]any{"name": fmt.Sprintf("build-%02d", i+1), "labels": []string{"ci", fmt.Sprintf("run:%d", 4100+i)}, "network_policy": policy})
	}
	newKey(w, "platform", api.RoleCreator, "")
	newKey(w, "security", api.RoleApprover, "")
	for range 3 {
		w.Sh(box, "curl -sS --max-time 20 https://cdn.example.org/v1/items; curl -sS https://api.example.com/echo -o /dev/null; curl -sS https://api.example.com/status/200; curl -sS --max-time 20 https://telemetry.evil.example.net/")
	}
	return box
}

// takeAll takes the pictures of a page.
func takeAll(t *testing.T, p *page, dir, name string) {
	t.Helper()
	for _, size := range [][2]int{{390, 844}, {768, 1024}, {1440, 900}} {
		p.do("size", size[0], size[1])
		for _, theme := range []string{"light", "dark"} {
			p.do("theme", theme)
			p.busy(50*time.Millisecond, "")
			path := filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, size[0], theme))
			height := min(1300, get[int](p, "evaluate", "Math.max(innerHeight, document.documentElement.scrollHeight)"))
			p.do("screenshot", path, map[string]any{"fullPage": true, "clip": map[string]int{"x": 0, "y": 0, "width": size[0], "height": height}})
			if err := shrink(path); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err != nil || info.Size() > mostPicture {
				t.Errorf("%s: %v %v", path, info.Size(), err)
			}
		}
	}
	p.do("theme", "light")
}

// shrink writes a picture again with the 256 colours that it has most of. Pages have few colours, and the shades between them at the edges
// of letters.
func shrink(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	from, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return err
	}
	bounds := from.Bounds()
	counts := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	colours := make([]color.RGBA, 0, len(counts))
	for c := range counts {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.RGBA) int {
		if n := counts[b] - counts[a]; n != 0 {
			return n
		}
		return int(a.R)<<16 + int(a.G)<<8 + int(a.B) - int(b.R)<<16 - int(b.G)<<8 - int(b.B)
	})
	palette := color.Palette{}
	for _, c := range colours[:min(256, len(colours))] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for c := range counts {
		index[c] = uint8(palette.Index(c))
	}
	to := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			to.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}
