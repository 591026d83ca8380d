// The hash is made as NetHashKey makes it, by tables of what each half of each byte adds, which lie in the map. So the
// program has no loop over bits, and each table is found by a number below 16, which the kernel's verifier can see. What a
// frame has no bytes for is zeros, which add nothing.
//
// What is said of a frame's headers is what net_dissect() says, in the same order; a test compares the two.
#include "backend/net/tap_steering.hpp"

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include "base/check.hpp"
#include "base/limits.hpp"
#include "request/net_layers.hpp"

namespace ringway {
namespace {

// The map's only value.
struct Steered {
  std::uint32_t types;
  std::uint32_t mask;
  std::uint32_t unclassified;  // a queue, as in `queues`
  std::uint32_t reserved;
  std::uint32_t queues[limits::kNetRssTableMax];
  NetHashKey::Tables tables;
};
static_assert(std::has_unique_object_representations_v<Steered>, "no gaps");

int bpf(bpf_cmd command, bpf_attr& attributes) noexcept {
  return static_cast<int>(::syscall(SYS_bpf, command, &attributes, sizeof attributes));
}

// ---------------------------------------------------------------- an assembler

// The registers of the machine: 0 is the result, 1 to 5 are arguments that calls destroy, 6 to 9 stay, 10 is the stack's
// end.
enum class Register : std::uint8_t { r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, stack };
using enum Register;

enum class Jump : std::uint8_t {
  equal = BPF_JEQ,
  unequal = BPF_JNE,
  greater = BPF_JGT,
  less = BPF_JLT,
  negative = BPF_JSLT
};

class Assembler {
 public:
  // A place to jump to, before or after it is known.
  using Label = std::size_t;
  [[nodiscard]] Label label() { return labels_++; }
  void place(Label label) { places_[label] = code_.size(); }

  void set(Register to, std::int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, r0, 0, value); }
  void copy(Register to, Register from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from, 0, 0); }
  void compute(std::uint8_t operation, Register to, std::int32_t value) {
    add(static_cast<std::uint8_t>(BPF_ALU64 | BPF_K | operation), to, r0, 0, value);
  }
  void compute(std::uint8_t operation, Register to, Register from) {
    add(static_cast<std::uint8_t>(BPF_ALU64 | BPF_X | operation), to, from, 0, 0);
  }
  // A number of 16 bits from the order of the network.
  void to_host16(Register to) { add(BPF_ALU | BPF_END | BPF_TO_BE, to, r0, 0, 16); }
  // `size` is BPF_B, BPF_H, BPF_W or BPF_DW.
  void load(std::uint8_t size, Register to, Register base, std::size_t offset) {
    add(static_cast<std::uint8_t>(BPF_LDX | BPF_MEM | size), to, base, static_cast<std::int16_t>(offset), 0);
  }
  void load_stack(std::uint8_t size, Register to, std::int16_t offset) {
    add(static_cast<std::uint8_t>(BPF_LDX | BPF_MEM | size), to, stack, offset, 0);
  }
  void store_stack(std::uint8_t size, std::int16_t offset, Register from) {
    add(static_cast<std::uint8_t>(BPF_STX | BPF_MEM | size), stack, from, offset, 0);
  }
  void store_stack(std::uint8_t size, std::int16_t offset, std::int32_t value) {
    add(static_cast<std::uint8_t>(BPF_ST | BPF_MEM | size), stack, r0, offset, value);
  }
  void load_map(Register to, int map) {
    add(BPF_LD | BPF_DW | BPF_IMM, to, static_cast<Register>(BPF_PSEUDO_MAP_FD), 0, map);
    add(0, r0, r0, 0, 0);
  }
  void call(std::int32_t function) { add(BPF_JMP | BPF_CALL, r0, r0, 0, function); }
  void exit() { add(BPF_JMP | BPF_EXIT, r0, r0, 0, 0); }
  void go(Label to) { jump(BPF_JMP | BPF_JA, r0, r0, 0, to); }
  void go_if(Register left, Jump condition, std::int32_t right, Label to) {
    jump(static_cast<std::uint8_t>(BPF_JMP | BPF_K | static_cast<std::uint8_t>(condition)), left, r0, right, to);
  }
  void go_if(Register left, Jump condition, Register right, Label to) {
    jump(static_cast<std::uint8_t>(BPF_JMP | BPF_X | static_cast<std::uint8_t>(condition)), left, right, 0, to);
  }

  [[nodiscard]] std::vector<bpf_insn> finish() {
    for (const auto& [from, to] : jumps_) {
      code_[from].off = static_cast<std::int16_t>(places_.at(to) - from - 1);
    }
    return std::move(code_);
  }

 private:
  void add(std::uint8_t code, Register to, Register from, std::int16_t offset, std::int32_t value) {
    bpf_insn one{};
    one.code = code;
    one.dst_reg = static_cast<std::uint8_t>(static_cast<unsigned>(to) & 15U);
    one.src_reg = static_cast<std::uint8_t>(static_cast<unsigned>(from) & 15U);
    one.off = offset;
    one.imm = value;
    code_.push_back(one);
  }
  void jump(std::uint8_t code, Register left, Register right, std::int32_t value, Label to) {
    jumps_.emplace_back(code_.size(), to);
    add(code, left, right, 0, value);
  }

  std::vector<bpf_insn> code_;
  std::size_t labels_ = 0;
  std::map<Label, std::size_t> places_;
  std::vector<std::pair<std::size_t, Label>> jumps_;
};

// ---------------------------------------------------------------- the program

// The stack.
constexpr std::int16_t kInput = -40;    // what is hashed: kNetHashInputBytesMax bytes
constexpr std::int16_t kEnd = -48;      // of the packet, or of what is looked at: an offset in the frame
constexpr std::int16_t kHeaders = -88;  // up to 40 bytes of the header at hand
static_assert(kInput + static_cast<int>(kNetHashInputBytesMax) <= 0 && kEnd + 8 <= kInput && kHeaders + 40 <= kEnd);

constexpr std::int32_t kTcpBytes = 20;
constexpr std::int32_t kUdpBytes = 8;
constexpr std::int32_t kIpv4Bytes = 20;
constexpr std::int32_t kIpv6Bytes = 40;
constexpr std::int32_t kExtensionBytes = 8;
constexpr std::int32_t kHopByHop = 0;
constexpr std::int32_t kRouting = 43;
constexpr std::int32_t kFragment = 44;
constexpr std::int32_t kAuthentication = 51;
constexpr std::int32_t kDestination = 60;

// As it is found in memory.
constexpr std::int32_t in_network_order(std::uint16_t number) {
  return std::endian::native == std::endian::little ? std::byteswap(number) : number;
}

// Registers that stay: the context, the map's value, the offset of the header at hand, and its kind.
constexpr Register kContext = r6;
constexpr Register kSteered = r7;
constexpr Register kAt = r8;
constexpr Register kKind = r9;

class Program {
 public:
  explicit Program(int map) : map_(map) {}

  [[nodiscard]] std::vector<bpf_insn> write() {
    begin();
    ethernet();
    ipv4();
    ipv6();
    hash(hash_short_, kShortBytes);
    hash(hash_long_, kNetHashInputBytesMax);
    choose();
    return code_.finish();
  }

 private:
  static constexpr std::size_t kShortBytes = 12;  // two IPv4 addresses and ports

  // Copies `bytes` bytes of the frame at kAt to kHeaders; or goes there.
  void take(std::int32_t bytes, Assembler::Label if_not_there) {
    code_.copy(r1, kContext);
    code_.copy(r2, kAt);
    code_.copy(r3, stack);
    code_.compute(BPF_ADD, r3, kHeaders);
    code_.set(r4, bytes);
    code_.call(BPF_FUNC_skb_load_bytes);
    code_.go_if(r0, Jump::negative, 0, if_not_there);
  }
  void load_header(std::uint8_t size, Register to, int offset) {
    code_.load_stack(size, to, static_cast<std::int16_t>(kHeaders + offset));
  }
  void go_unless_enabled(std::uint32_t type, Assembler::Label to) {
    code_.load(BPF_W, r1, kSteered, offsetof(Steered, types));
    code_.compute(BPF_AND, r1, static_cast<std::int32_t>(type));
    code_.go_if(r1, Jump::equal, 0, to);
  }

  void begin() {
    const Assembler::Label there = code_.label();
    code_.copy(kContext, r1);
    code_.store_stack(BPF_W, kHeaders, 0);  // the key of the map's only value
    code_.load_map(r1, map_);
    code_.copy(r2, stack);
    code_.compute(BPF_ADD, r2, kHeaders);
    code_.call(BPF_FUNC_map_lookup_elem);
    code_.go_if(r0, Jump::unequal, 0, there);
    code_.exit();
    code_.place(there);
    code_.copy(kSteered, r0);
    for (std::int16_t at = 0; at < 32; at = static_cast<std::int16_t>(at + 8)) {
      code_.store_stack(BPF_DW, static_cast<std::int16_t>(kInput + at), 0);
    }
    code_.store_stack(BPF_W, kInput + 32, 0);
  }

  // kAt is behind it then.
  void ethernet() {
    const Assembler::Label typed = code_.label();
    code_.set(kAt, 2 * spec::kMacBytes);
    take(2, unclassified_);
    for (int tag = 0; tag < 2; ++tag) {
      const Assembler::Label tagged = code_.label();
      load_header(BPF_H, kKind, 0);
      code_.go_if(kKind, Jump::equal, in_network_order(kEtherTypeVlan), tagged);
      code_.go_if(kKind, Jump::unequal, in_network_order(kEtherTypeQinq), typed);
      code_.place(tagged);
      code_.compute(BPF_ADD, kAt, 4);
      take(2, unclassified_);
    }
    load_header(BPF_H, kKind, 0);
    code_.place(typed);
    code_.compute(BPF_ADD, kAt, 2);
    code_.go_if(kKind, Jump::equal, in_network_order(kEtherTypeIpv6), ipv6_);
    code_.go_if(kKind, Jump::unequal, in_network_order(kEtherTypeIpv4), unclassified_);
  }

  // Of r2 bytes, as its header says, or 0 for all that is there. r2 is that number then, and kEnd is set.
  void packet() {
    const Assembler::Label given = code_.label();
    const Assembler::Label within = code_.label();
    code_.load(BPF_W, r3, kContext, offsetof(__sk_buff, len));
    code_.compute(BPF_SUB, r3, kAt);
    code_.go_if(r2, Jump::unequal, 0, given);
    code_.copy(r2, r3);
    code_.place(given);
    code_.go_if(r2, Jump::greater, r3, unclassified_);
    code_.copy(r3, kAt);
    code_.compute(BPF_ADD, r3, r2);
    constexpr auto kMost = static_cast<std::int32_t>(limits::kNetHeadBytesMax);
    code_.go_if(r3, Jump::less, kMost, within);
    code_.set(r3, kMost);
    code_.place(within);
    code_.store_stack(BPF_DW, kEnd, r3);
  }

  void ipv4() {
    const Assembler::Label addresses_only = code_.label();
    take(kIpv4Bytes, unclassified_);
    load_header(BPF_B, r1, 0);
    code_.copy(r2, r1);
    code_.compute(BPF_RSH, r2, 4);
    code_.go_if(r2, Jump::unequal, 4, unclassified_);
    code_.compute(BPF_AND, r1, 15);
    code_.compute(BPF_LSH, r1, 2);
    code_.go_if(r1, Jump::less, kIpv4Bytes, unclassified_);
    load_header(BPF_H, r2, 2);
    code_.to_host16(r2);
    packet();
    code_.go_if(r2, Jump::less, r1, unclassified_);
    load_header(BPF_W, r3, 12);
    code_.store_stack(BPF_W, kInput, r3);
    load_header(BPF_W, r3, 16);
    code_.store_stack(BPF_W, kInput + 4, r3);
    load_header(BPF_B, kKind, 9);
    load_header(BPF_H, r3, 6);
    code_.compute(BPF_ADD, kAt, r1);
    code_.compute(BPF_AND, r3, in_network_order(0x3fff));  // more fragments, or not the first
    code_.go_if(r3, Jump::unequal, 0, addresses_only);
    transport(kInput + 8, spec::kNetHashTypeTcpv4, spec::kNetHashTypeUdpv4, addresses_only, hash_short_);
    code_.place(addresses_only);
    go_unless_enabled(spec::kNetHashTypeIpv4, unclassified_);
    code_.go(hash_short_);
  }

  void ipv6() {
    const Assembler::Label addresses_only = code_.label();
    const Assembler::Label behind = code_.label();
    code_.place(ipv6_);
    take(kIpv6Bytes, unclassified_);
    load_header(BPF_B, r1, 0);
    code_.compute(BPF_RSH, r1, 4);
    code_.go_if(r1, Jump::unequal, 6, unclassified_);
    const Assembler::Label counted = code_.label();
    load_header(BPF_H, r2, 4);
    code_.to_host16(r2);
    code_.go_if(r2, Jump::equal, 0, counted);
    code_.compute(BPF_ADD, r2, kIpv6Bytes);
    code_.place(counted);
    packet();
    for (std::int16_t at = 0; at < 32; at = static_cast<std::int16_t>(at + 8)) {
      load_header(BPF_DW, r3, 8 + at);
      code_.store_stack(BPF_DW, static_cast<std::int16_t>(kInput + at), r3);
    }
    load_header(BPF_B, kKind, 6);
    code_.compute(BPF_ADD, kAt, kIpv6Bytes);
    for (std::size_t count = 0; count < limits::kNetExtensionHeadersMax; ++count) {
      extension(behind, addresses_only);
    }
    // Too many.
    for (const std::int32_t kind : kExtensions) {
      code_.go_if(kKind, Jump::equal, kind, addresses_only);
    }
    code_.place(behind);
    transport(kInput + 32, spec::kNetHashTypeTcpv6, spec::kNetHashTypeUdpv6, addresses_only, hash_long_);
    code_.place(addresses_only);
    go_unless_enabled(spec::kNetHashTypeIpv6, unclassified_);
    code_.go(hash_long_);
  }

  // Goes past one extension header, or to `behind` if there is none, or to `cut` if nothing more is to be found.
  void extension(Assembler::Label behind, Assembler::Label cut) {
    const Assembler::Label is_one = code_.label();
    const Assembler::Label of_fours = code_.label();
    const Assembler::Label measured = code_.label();
    const Assembler::Label whole = code_.label();
    for (const std::int32_t kind : kExtensions) {
      code_.go_if(kKind, Jump::equal, kind, is_one);
    }
    code_.go(behind);
    code_.place(is_one);
    take(kExtensionBytes, cut);
    code_.load_stack(BPF_DW, r3, kEnd);
    code_.copy(r2, kAt);
    code_.compute(BPF_ADD, r2, kExtensionBytes);
    code_.go_if(r2, Jump::greater, r3, cut);
    load_header(BPF_B, r1, 1);
    code_.go_if(kKind, Jump::equal, kAuthentication, of_fours);
    code_.go_if(kKind, Jump::unequal, kFragment, whole);
    load_header(BPF_H, r2, 2);
    code_.compute(BPF_AND, r2, in_network_order(0xfff9));  // more fragments, or not the first
    code_.go_if(r2, Jump::unequal, 0, cut);
    code_.set(r1, 0);
    code_.place(whole);
    code_.compute(BPF_ADD, r1, 1);
    code_.compute(BPF_LSH, r1, 3);
    code_.go(measured);
    code_.place(of_fours);
    code_.compute(BPF_ADD, r1, 2);
    code_.compute(BPF_LSH, r1, 2);
    code_.place(measured);
    code_.compute(BPF_ADD, r1, kAt);
    code_.go_if(r1, Jump::greater, r3, cut);
    code_.copy(kAt, r1);
    load_header(BPF_B, kKind, 0);
  }

  // At kAt, if it is TCP or UDP and wanted: puts the ports to `input` and goes to `hash`; else to `not_so`.
  void transport(std::int16_t input, std::uint32_t tcp_type, std::uint32_t udp_type, Assembler::Label not_so,
                 Assembler::Label hash) {
    const Assembler::Label tcp = code_.label();
    const Assembler::Label ports = code_.label();
    code_.go_if(kKind, Jump::equal, kIpProtocolTcp, tcp);
    code_.go_if(kKind, Jump::unequal, kIpProtocolUdp, not_so);
    go_unless_enabled(udp_type, not_so);
    take(kUdpBytes, not_so);
    code_.set(r1, kUdpBytes);
    code_.go(ports);
    code_.place(tcp);
    go_unless_enabled(tcp_type, not_so);
    take(kTcpBytes, not_so);
    load_header(BPF_B, r1, 12);
    code_.compute(BPF_RSH, r1, 4);
    code_.compute(BPF_LSH, r1, 2);
    code_.go_if(r1, Jump::less, kTcpBytes, not_so);
    code_.place(ports);
    code_.compute(BPF_ADD, r1, kAt);
    code_.load_stack(BPF_DW, r2, kEnd);
    code_.go_if(r1, Jump::greater, r2, not_so);
    load_header(BPF_W, r1, 0);
    code_.store_stack(BPF_W, input, r1);
    code_.go(hash);
  }

  // To r0.
  void hash(Assembler::Label at, std::size_t bytes) {
    code_.place(at);
    code_.set(r0, 0);
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::size_t table = offsetof(Steered, tables) + i * sizeof(NetHashKey::ByteTable);
      code_.load_stack(BPF_B, r1, static_cast<std::int16_t>(kInput + static_cast<int>(i)));
      code_.copy(r2, r1);
      code_.compute(BPF_AND, r1, 15);
      code_.compute(BPF_LSH, r1, 2);
      add_from(r1, table + offsetof(NetHashKey::ByteTable, low));
      code_.compute(BPF_RSH, r2, 4);
      code_.compute(BPF_AND, r2, 15);
      code_.compute(BPF_LSH, r2, 2);
      add_from(r2, table + offsetof(NetHashKey::ByteTable, high));
    }
    code_.go(chosen_);
  }
  void add_from(Register index, std::size_t table) {
    code_.compute(BPF_ADD, index, kSteered);
    code_.load(BPF_W, index, index, table);
    code_.compute(BPF_XOR, r0, index);
  }

  void choose() {
    code_.place(chosen_);
    code_.load(BPF_W, r1, kSteered, offsetof(Steered, mask));
    code_.compute(BPF_AND, r0, r1);
    code_.compute(BPF_AND, r0, static_cast<std::int32_t>(limits::kNetRssTableMax - 1));  // as the verifier sees it
    code_.compute(BPF_LSH, r0, 2);
    code_.compute(BPF_ADD, r0, kSteered);
    code_.load(BPF_W, r0, r0, offsetof(Steered, queues));
    code_.exit();
    code_.place(unclassified_);
    code_.load(BPF_W, r0, kSteered, offsetof(Steered, unclassified));
    code_.exit();
  }

  static constexpr std::array kExtensions{kHopByHop, kRouting, kFragment, kDestination, kAuthentication};

  int map_;
  Assembler code_;
  Assembler::Label unclassified_ = code_.label();
  Assembler::Label ipv6_ = code_.label();
  Assembler::Label hash_short_ = code_.label();
  Assembler::Label hash_long_ = code_.label();
  Assembler::Label chosen_ = code_.label();
};
static_assert(std::has_single_bit(limits::kNetRssTableMax));

}  // namespace

std::vector<bpf_insn> tap_steering_program(int map) {
  return Program(map).write();
}

Result<std::unique_ptr<TapSteering>> TapSteering::load() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = sizeof(std::uint32_t);
  attributes.value_size = sizeof(Steered);
  attributes.max_entries = 1;
  UniqueFd map(bpf(BPF_MAP_CREATE, attributes));
  if (!map) {
    return fail_errno(errno, "the kernel gives no map for a steering program");
  }
  const std::vector<bpf_insn> code = tap_steering_program(map.get());
  attributes = {};
  attributes.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  attributes.insns = reinterpret_cast<std::uintptr_t>(code.data());
  attributes.insn_cnt = static_cast<std::uint32_t>(code.size());
  attributes.license = reinterpret_cast<std::uintptr_t>("Apache-2.0");
  // The verifier gives up when a signal, or a completion of io_uring, waits for the thread.
  constexpr int kTriesMax = 10;
  int loaded = -1;
  for (int tries = 0; loaded < 0 && (tries == 0 || errno == EAGAIN) && tries < kTriesMax; ++tries) {
    loaded = bpf(BPF_PROG_LOAD, attributes);
  }
  UniqueFd program(loaded);
  if (!program) {
    return fail_errno(errno, "the kernel takes no steering program");
  }
  return std::unique_ptr<TapSteering>(new TapSteering(std::move(map), std::move(program)));
}

Result<> TapSteering::set(const NetSteering& by, std::span<const std::uint32_t> queues) {
  RW_DCHECK((by.hashing.types & ~kTypes) == 0);
  const NetHashKey key(std::span(by.hashing.key).first(by.hashing.key_bytes));
  const auto steered = std::make_unique<Steered>();
  steered->types = by.hashing.types;
  steered->mask = by.table.mask;
  steered->unclassified = queues[by.table.unclassified_pair];
  for (std::size_t i = 0; i <= by.table.mask; ++i) {
    steered->queues[i] = queues[by.table.pairs[i]];
  }
  steered->tables = key.tables();
  const std::uint32_t only = 0;
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_.get());
  attributes.key = reinterpret_cast<std::uintptr_t>(&only);
  attributes.value = reinterpret_cast<std::uintptr_t>(steered.get());
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) < 0) {
    return fail_errno(errno, "the kernel takes no table for the steering program");
  }
  return {};
}

}  // namespace ringway
