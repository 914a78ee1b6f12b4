package command

import (
	"net"
	"path/filepath"
	"strings"

	"boxgate/config"
	"boxgate/internal/buildinfo"
)

// greeting lists the addresses and files of the gateway, and the next command to type.
func greeting(cfg config.Config) string {
	var admin []string
	if cfg.Admin.Socket != "" {
		admin = append(admin, cfg.Admin.Socket)
	}
	if cfg.Admin.Listen != "" {
		admin = append(admin, "http://"+cfg.Admin.Listen)
	}
	lines := []string{
		"", "boxgate " + buildinfo.Get().Version + " is ready. Ctrl-C stops it; boxes go on, and are closed where the gateway decides.", "",
		"  admin API    " + strings.Join(admin, ", "),
		"  API key      " + filepath.Join(cfg.StateDir, "api-key"),
		"  public URLs  " + publicURLs(cfg.Ingress),
	}
	if cfg.Metrics.Listen != "" {
		lines = append(lines, "  metrics      http://"+cfg.Metrics.Listen+"/metrics")
	}
	return strings.Join(append(lines, "", "Next, in another terminal:  sudo gateway box create --name demo --policy preset:github,pypi", "", ""), "\n")
}

// publicURLs shows an example: the public URL of port 8000 of a box.
func publicURLs(c config.Ingress) string {
	if c.HTTPS == "" {
		return "none (ingress.https is off)"
	}
	url := "https://" + c.HostName("BOX", 8000)
	if _, port, err := net.SplitHostPort(c.HTTPS); err == nil && port != "443" {
		url += ":" + port
	}
	return url
}
