//! What a person would call a process.

use std::path::Path;

/// Programs that start one Python script many times and stand above its workers.
const LAUNCHERS: [&str; 6] = [
    "torchrun",
    "accelerate",
    "deepspeed",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
];
const INTERPRETERS: [&str; 5] = ["uv", "node", "perl", "ruby", "julia"];

/// The part of a command line that a person would call it by: the script or module of an interpreter, the script that
/// `torchrun` and its like start, else the program. Empty where there is no command line.
pub fn program_name(command: &str) -> &str {
    program_and_arguments(command).split_whitespace().next().unwrap_or("")
}

/// The command line from [`program_name`] on.
pub fn program_and_arguments(command: &str) -> &str {
    let mut words = words(command);
    let Some((start, first)) = words.next().map(base_name) else { return "" };
    let is_interpreter = first.starts_with("python") || INTERPRETERS.contains(&first);
    let (start, name) = is_interpreter.then(|| script(&mut words)).flatten().unwrap_or((start, first));
    let (start, _) = LAUNCHERS.contains(&name).then(|| launched_script(words)).flatten().unwrap_or((start, name));
    command.get(start..).unwrap_or("")
}

/// A word of a command line and where it begins.
type Word<'a> = (usize, &'a str);

fn words(command: &str) -> impl Iterator<Item = Word<'_>> {
    let mut end = 0;
    let pieces = command.split_inclusive(char::is_whitespace).map(move |piece| {
        end += piece.len();
        (end - piece.len(), piece.trim_end())
    });
    pieces.filter(|(_, word)| !word.is_empty())
}

/// What an interpreter runs, its options left aside.
fn script<'a>(words: &mut impl Iterator<Item = Word<'a>>) -> Option<Word<'a>> {
    match words.find(|(_, word)| !word.starts_with('-') || *word == "-m" || *word == "-c")? {
        (_, "-m") => words.next(),
        (_, "-c") => None,
        path => Some(base_name(path)),
    }
}

/// The options of launchers may have values of their own, so that only a file or a module is surely what they start.
fn launched_script<'a>(mut words: impl Iterator<Item = Word<'a>>) -> Option<Word<'a>> {
    match words.find(|(_, word)| is_script(word) || *word == "-m" || *word == "--module")? {
        (_, "-m" | "--module") => words.next(),
        path => Some(base_name(path)),
    }
}

fn is_script(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|extension| extension == "py")
}

fn base_name((start, path): Word<'_>) -> Word<'_> {
    match path.rsplit_once('/') {
        Some((folders, name)) if !name.is_empty() => (start + folders.len() + 1, name),
        _ => (start, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_called_by_its_script() {
        for (command, name) in [
            ("python train.py --lr 1", "train.py"),
            ("/usr/bin/python3.11 -u /home/a/code/train.py", "train.py"),
            ("python3 -m ipykernel_launcher -f /tmp/k.json", "ipykernel_launcher"),
            ("/opt/bin/gmx mdrun", "gmx"),
            ("python", "python"),
            ("python -c pass", "python"),
            ("/bin/ -x", "/bin/"),
            ("", ""),
        ] {
            assert_eq!(program_name(command), name, "{command}");
        }
    }

    #[test]
    fn a_launcher_is_called_by_what_it_starts() {
        for (command, name) in [
            ("python /opt/conda/bin/torchrun --nproc_per_node 8 --master_port 29500 code/train.py --lr 1", "train.py"),
            ("torchrun --standalone -m lab.pretrain", "lab.pretrain"),
            ("python -m torch.distributed.run --nnodes=2 x.py y.py", "x.py"),
            ("accelerate launch --num_processes 8 sft.py", "sft.py"),
            ("torchrun --help", "torchrun"),
            // Not a launcher: the file is its argument.
            ("vim train.py", "vim"),
        ] {
            assert_eq!(program_name(command), name, "{command}");
        }
        assert_eq!(program_and_arguments("python  /x/x  --lr 1"), "x  --lr 1");
        assert_eq!(program_and_arguments("python -m torch.distributed.run --nnodes=2 a/x.py y"), "x.py y");
    }
}
