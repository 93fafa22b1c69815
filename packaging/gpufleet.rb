# A Homebrew formula. tools/release fills in the places between @ and writes target/dist/gpufleet.rb. Not tried on macOS.
class Gpufleet < Formula
  desc "Terminal monitor for the GPU servers of a small lab, over plain SSH"
  homepage "@URL@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
      url "@URL@/releases/download/v@VERSION@/gpufleet-@VERSION@-macos-arm64.tar.gz"
      sha256 "@SHA256_MACOS_ARM64@"
    end
    on_intel do
      url "@URL@/releases/download/v@VERSION@/gpufleet-@VERSION@-macos-x86_64.tar.gz"
      sha256 "@SHA256_MACOS_X86_64@"
    end
  end

  on_linux do
    on_arm do
      url "@URL@/releases/download/v@VERSION@/gpufleet-@VERSION@-linux-aarch64.tar.gz"
      sha256 "@SHA256_LINUX_AARCH64@"
    end
    on_intel do
      url "@URL@/releases/download/v@VERSION@/gpufleet-@VERSION@-linux-x86_64.tar.gz"
      sha256 "@SHA256_LINUX_X86_64@"
    end
  end

  def install
    bin.install "gpufleet"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/gpufleet.bash" => "gpufleet"
    zsh_completion.install "completions/_gpufleet"
    fish_completion.install "completions/gpufleet.fish"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/gpufleet --version")
    assert_match "simulated fleet", shell_output("#{bin}/gpufleet --demo status")
  end
end
