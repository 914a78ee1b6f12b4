# Arguments: the skills, as owner/repository or owner/repository/skill. See SkillsCommand.
set -u
home=${HOME:-/workspace/home}
target=$home/.claude/skills
codex=$home/.codex/skills
state=$home/.box-internal/skills
mkdir -p "$target" "$codex" "$state" || exit 1
failed=0

uninstall() { # names the file that lists the directories of a skill
	while read -r name; do
		case $name in '' | .* | -* | */*) continue ;; esac
		rm -rf -- "${target:?}/$name" "${codex:?}/$name"
	done <"$1"
	rm -f -- "$1"
}

place() { # copies the skill of a SKILL.md: file, name
	case $2 in '' | .* | -* | *[!A-Za-z0-9._-]*) return 1 ;; esac
	rm -rf -- "${target:?}/$2" "${codex:?}/$2"
	cp -R -- "$(dirname -- "$1")" "$target/$2" && rm -rf -- "$target/$2/.git" && ln -s "../../.claude/skills/$2" "$codex/$2" && printf '%s\n' "$2"
}

install() { # owner, repository, skill or nothing; prints the names of the directories
	tree=$(mktemp -d) || return 1
	GIT_TERMINAL_PROMPT=0 timeout 60 git clone -q --depth 1 -- "https://github.com/$1/$2" "$tree/$2" || { rm -rf -- "$tree"; return 1; }
	if [ -n "$3" ]; then
		found=
		for file in "$tree/$2/skills/$3/SKILL.md" "$tree/$2/.claude/skills/$3/SKILL.md" "$tree/$2/$3/SKILL.md" "$tree/$2/skills/SKILL.md" "$tree/$2/SKILL.md"; do
			if [ -f "$file" ]; then found=$file && break; fi
		done
		[ -n "$found" ] && place "$found" "$3"
	else
		none=1
		for file in "$tree/$2/SKILL.md" "$tree/$2"/skills/*/SKILL.md "$tree/$2"/.claude/skills/*/SKILL.md; do
			if [ -f "$file" ] && place "$file" "$(basename -- "$(dirname -- "$file")")"; then none=0; fi
		done
		[ $none = 0 ]
	fi
	result=$?
	rm -rf -- "$tree"
	return $result
}

for mark in "$state"/*; do
	[ -f "$mark" ] || continue
	wanted=0
	for id; do
		if [ "$(printf %s "$id" | tr / +)" = "${mark##*/}" ]; then wanted=1; fi
	done
	[ $wanted = 1 ] || uninstall "$mark"
done

for id; do
	mark=$state/$(printf %s "$id" | tr / +)
	if [ -f "$mark" ]; then continue; fi
	owner=${id%%/*} rest=${id#*/}
	repository=${rest%%/*} skill=
	case $rest in */*) skill=${rest#*/} ;; esac
	if install "$owner" "$repository" "$skill" >"$mark.new"; then
		mv -- "$mark.new" "$mark"
	else
		rm -f -- "$mark.new"
		echo "skill $id: it could not be installed from https://github.com/$owner/$repository" >&2
		failed=1
	fi
done
exit $failed
