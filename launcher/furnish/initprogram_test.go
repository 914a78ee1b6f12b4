package furnish

import (
	"bytes"
	"debug/elf"
	"testing"
)

func TestInitProgramIsAnExecutable(t *testing.T) {
	t.Parallel()
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		data, err := initProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		f, err := elf.NewFile(bytes.NewReader(data))
		if err != nil || f.Machine != machine || f.Type != elf.ET_EXEC || len(f.Progs) != 1 || f.Progs[0].Filesz != uint64(len(data)) {
			t.Errorf("%s: %+v, %v", arch, f, err)
		}
	}
	if _, err := initProgram("mips"); err == nil {
		t.Error("an architecture without a program was accepted")
	}
}
