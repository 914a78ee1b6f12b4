package ui

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"
)

//go:embed assets
var assetFiles embed.FS

//go:embed templates
var templateFiles embed.FS

// asset is a script, style or image under a name that contains the hash of its content, so that browsers may keep it for good.
type asset struct {
	media   string
	content []byte
}

// assets are the assets by their name with hash, and assetNames maps names to names with hash.
var assets, assetNames = readAssets()

func readAssets() (map[string]asset, map[string]string) {
	found, names := map[string]asset{}, map[string]string{}
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		panic(err) // the files are part of the program
	}
	for _, e := range entries {
		readAsset(e.Name(), found, names)
	}
	return found, names
}

// imported matches the import of another script. Scripts import no script that imports them.
var imported = regexp.MustCompile(`from "\./([a-z-]+\.js)"`)

// readAsset adds an asset, and before it the scripts that it imports, whose names in it get their hashes.
func readAsset(name string, found map[string]asset, names map[string]string) {
	if names[name] != "" {
		return
	}
	content, err := fs.ReadFile(assetFiles, "assets/"+name)
	if err != nil {
		panic(err)
	}
	if path.Ext(name) == ".js" {
		content = imported.ReplaceAllFunc(content, func(match []byte) []byte {
			other := string(imported.FindSubmatch(match)[1])
			readAsset(other, found, names)
			return []byte(`from "./` + names[other] + `"`)
		})
	}
	sum := sha256.Sum256(content)
	hashed := hex.EncodeToString(sum[:8]) + "-" + name
	found[hashed] = asset{mediaOf(name), content}
	names[name] = hashed
}

// mediaOf returns the media type of an asset. The table of the host must not decide about it: a script with another type is
// not executed.
func mediaOf(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}

// assetPath returns the path of an asset, or panics: templates name only assets that exist.
func assetPath(name string) string {
	hashed, ok := assetNames[name]
	if !ok {
		panic("no such asset: " + name)
	}
	return Prefix + "assets/" + hashed
}

// serveAsset serves an asset. It needs no session, because the sign-in uses the same style.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	a, ok := assets[r.PathValue("name")]
	if !ok {
		http.Error(w, "There is no such file.", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.media)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	http.ServeContent(w, r, "", noTime, strings.NewReader(string(a.content)))
}
