package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// rpmArchitectures are the names of the architectures in RPM packages.
var rpmArchitectures = map[string]string{"amd64": "x86_64", "arm64": "aarch64"}

// makeRPMs builds an RPM package of each program for each architecture.
func makeRPMs(ctx context.Context, out string, arches []string) error {
	return makeEach(ctx, out, arches, "RPM", binary.packRPM)
}

// packRPM builds the RPM package of a binary from the files of its Debian package, and returns its path.
func (b binary) packRPM(ctx context.Context, out string) (string, error) {
	work, err := os.MkdirTemp("", "boxgate-rpm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	tree, err := b.stage()
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tree)
	if b.service {
		if err := moveZshCompletion(tree); err != nil {
			return "", err
		}
	}
	if err := normalizeTree(tree, b.date); err != nil {
		return "", err
	}
	arch, version := rpmArchitectures[b.arch], debianVersion(b.info.Main.Version)
	name := b.pkg + "-" + version + "-1." + arch + ".rpm"
	args := []string{"-bb", "--quiet", "--target", arch + "-unknown-linux"}
	for _, macro := range append([]string{
		"_topdir " + work, "_rpmdir " + work, "_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
		"release_version " + version, "release_tree " + tree,
	}, rpmMacros...) {
		args = append(args, "--define", macro)
	}
	cmd := exec.CommandContext(ctx, "rpmbuild", append(args, "dist/rpm/"+b.pkg+".spec")...)
	cmd.Env = append(os.Environ(), b.epoch(), "HOME="+work, "LC_ALL=C") // without the user's .rpmmacros
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("rpmbuild: %w: %s", err, said)
	}
	text, err := os.ReadFile(filepath.Join(work, name))
	if err != nil {
		return "", err
	}
	return filepath.Join(out, name), write(out, name, text, 0o644)
}

// rpmMacros make a package depend on its files and the commit's time only, and leave the files as they are: rpmbuild
// would strip programs and recompress man pages. Every RPM since 2010 reads xz.
var rpmMacros = []string{
	"_buildhost localhost", "use_source_date_epoch_as_buildtime 1", "clamp_mtime_to_source_date_epoch 1",
	"source_date_epoch_from_changelog 0", "debug_package %{nil}", "__os_install_post %{nil}",
	"_build_id_links none", "_binary_payload w2.xzdio",
}

// moveZshCompletion moves zsh's completion from Debian's directory of packages to that of RPM systems.
func moveZshCompletion(tree string) error {
	zsh := filepath.Join(tree, "usr/share/zsh")
	return os.Rename(filepath.Join(zsh, "vendor-completions"), filepath.Join(zsh, "site-functions"))
}
